# SPDX-License-Identifier: Apache-2.0
"""`python -m nvdra_migrate` runs the command `nvdra-migrate`."""

from nvdra_migrate.command import main

if __name__ == "__main__":
    main()
