"""Tests of appliance/plan and of the verbs that use it."""
