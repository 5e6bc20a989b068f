"""The workbench: a view of run folders in the browser. It calls the same functions as the commands; nothing can be done here alone."""
