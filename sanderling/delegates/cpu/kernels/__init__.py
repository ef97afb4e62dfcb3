"""What the compiler can write, family by family; `table.py` beside it lists all rows."""
