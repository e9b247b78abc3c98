//! The functions of the CUDA driver API that scaled-gemm calls.
//!
//! What each one does, takes and demands of its caller is what CUDA's documentation says of it; comments say where this driver differs.
//! Work is done at once, on the thread that enqueues it, but for what comes behind functions of the caller's ([`queue`]).

#![expect(clippy::missing_safety_doc, reason = "CUDA's documentation says what callers of its functions vouch for")]

pub mod capture;
pub mod codes;
pub mod context;
pub mod copy;
pub mod device;
pub mod event;
pub mod function;
pub mod graph;
pub mod launch;
pub mod memory;
pub mod module;
pub mod op;
pub mod pointer;
pub mod pool;
pub mod proc_address;
pub mod queue;
pub mod state;
pub mod stream;
pub mod tensor;
#[cfg(test)]
mod tests;
