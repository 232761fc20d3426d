"""Where attempts run: one interface (`protocol`), one implementation a file, one contract suite for all of them."""
