"""What people see in a browser: the operator's page, a seat's own, their logins and actions."""
