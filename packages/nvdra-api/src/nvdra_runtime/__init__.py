# SPDX-License-Identifier: Apache-2.0
"""The framework that the components of nvdra run on.

The distribution `nvdra-api` has an extra for the dependencies of each package. An import of a
package without its extra raises an ImportError that names the extra.
"""
