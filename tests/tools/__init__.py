"""Tools that make files which the package ships."""
