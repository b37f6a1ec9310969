"""Making a node: fields, statics, the pair, and the two ways to declare a class."""
