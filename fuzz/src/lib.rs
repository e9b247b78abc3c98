//! What the targets share: files made of a fuzzer's bytes, what is asked of them, and limits of time and memory.

pub mod ask;
pub mod limits;
pub mod make;
pub mod scratch;
