# SPDX-License-Identifier: Apache-2.0
# What demo and test pods run: a shell, the usual tools, a C library for the programs a GPU brings along.
FROM scratch
COPY rootfs /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["/bin/sh"]
