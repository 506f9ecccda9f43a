# SPDX-License-Identifier: Apache-2.0
# The process that holds a pod's namespaces: it sleeps until it is killed.
FROM scratch
COPY rootfs /
ENTRYPOINT ["/bin/sleep", "2147483647"]
