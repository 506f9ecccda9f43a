# SPDX-License-Identifier: Apache-2.0
"""`python -m nvdra_cdi` runs the command `nvdra-cdi`."""

from nvdra_cdi.cli.main import main

if __name__ == "__main__":
    main()
