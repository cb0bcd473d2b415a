"""What the box is: facts gathered once, and checks over them."""
