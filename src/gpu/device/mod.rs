//! The GPU and its memory: what lies below cuBLASLt, the kernels, and everything that uses them.

pub(crate) mod arena;
pub(crate) mod chain;
pub(crate) mod fork;
pub(crate) mod graph;
pub(crate) mod info;
pub(crate) mod libraries;
pub(crate) mod memory;
pub(crate) mod search;
pub(crate) mod stream;
