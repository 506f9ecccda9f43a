"""`python -m nvdra_cdi`: the same as the command `nvdra-cdi`."""

from nvdra_cdi.cli.main import main

if __name__ == "__main__":
    main()
