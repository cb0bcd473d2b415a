"""Tests of appliance.box."""
