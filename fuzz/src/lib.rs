//! What the targets share: files made of a fuzzer's bytes, what is asked of them, and limits of time and memory.

#[path = "../../tests/common/allocations.rs"]
mod allocations;
pub mod ask;
pub mod limits;
pub mod make;
pub mod scratch;
