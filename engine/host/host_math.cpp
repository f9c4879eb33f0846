// Plain maths.
