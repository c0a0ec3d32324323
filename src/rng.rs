//! Random streams, bounded draws and the shuffle.
