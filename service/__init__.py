"""Everything that touches a user. It imports the contract modules of `pipelines` only, never torch."""
