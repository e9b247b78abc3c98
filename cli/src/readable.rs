//! Whether a matrix can be read, by its headers and its scales: asked before the work, and of what is copied unread.

use scaled_gemm::Result;
use scaled_gemm::checkpoint::Checkpoint;

/// Most bytes of scales that are looked at in all: those of 9 GiB of NVFP4, of 5 GiB of a cast to E2M1 in 1x32, whose scales are FP32, and of
/// more where groups are larger. A dry run of `quantize` reads them, too, for what it says of a model that it refuses.
const MOST_SCALES: u64 = 1 << 30;

/// Looks at one matrix after the other.
pub struct Readable<'a> {
    input: &'a Checkpoint,
    read: u64,
}

impl<'a> Readable<'a> {
    pub fn new(input: &'a Checkpoint) -> Self {
        Self { input, read: 0 }
    }

    /// Refuses a matrix that cannot be read, and scales that are no numbers, as far as so many are looked at.
    pub fn check(&mut self, name: &str) -> Result<()> {
        let (.., parts) = self.input.quant_info(name)?;
        let bytes: u64 = parts.iter().skip(1).map(|scale| scale.bytes()).sum();
        if self.read + bytes > MOST_SCALES {
            return Ok(());
        }
        self.read += bytes;
        self.input.check_scales(name)
    }
}
