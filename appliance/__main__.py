"""`python -m appliance`: the same as the command `moe-appliance`."""

from appliance.cli import main

if __name__ == "__main__":
    main()
