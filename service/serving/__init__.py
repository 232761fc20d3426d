"""Processes that serve published models: started on demand, isolated as attempts are, ended when nobody asks."""
