"""Built-in dicts: no class, no statics."""

NO_STATICS = True
Norm = Attention = MLP = Eight = Block = dict
