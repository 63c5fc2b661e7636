//! Named, panic-contained threads.
