"""The package: what is made from the command line's help, the scripts that dpkg runs, the archives."""
