"""Files of weights under the names of this package, for programs of mmengine."""
