//! [`Lanes`]: how many streams equal products go to that do not wait for one another, and what each stream has of the handle's scratch memory.

use crate::error::{Error, Result};
use crate::gpu::gemm::plan::GemmPlan;
use crate::gpu::gemm::steps::Product;

/// The most streams that may be asked for.
pub(crate) const MOST_STREAMS: usize = 8;

/// Where cuBLASLt's workspace may begin, and parts of scratch memory do.
const GRAIN: usize = 256;

/// Of some algorithms with an epilogue nvmath knows that they take so much more workspace than they say.
const UNSAID: usize = 16;

/// Streams of some products, that of the handle the first of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Lanes {
    streams: usize,
    asked: Option<usize>,
    /// Products.
    count: usize,
    /// How often one product fills the GPU.
    waves: f32,
    /// Bytes that a call needs.
    scratch: usize,
    /// Bytes that its algorithm takes of cuBLASLt's workspace. The first stream has the handle's.
    workspace: usize,
}

/// As many streams as products fill the GPU together. Products that fill 0.12 to 0.25 of it take 0.23 to 0.58 of one stream's time, 0.5 to 0.97 of it 0.63 to 1.02 (H100, 2026-11).
fn by_rule(waves: f32) -> usize {
    // Of what the library says nothing, nothing is known.
    if waves > 0.0 { ((1.0 / waves).ceil() as usize).clamp(1, MOST_STREAMS) } else { 1 }
}

/// Refuses a number of streams.
pub(crate) fn check_streams(asked: Option<usize>) -> Result<()> {
    match asked {
        Some(streams) if !(1..=MOST_STREAMS).contains(&streams) => Err(Error::unsupported(
            format!("to run products of groups on {streams} streams"),
            format!("the handle's own is the first of them, and {MOST_STREAMS} are the most"),
            format!("ask for 1 to {MOST_STREAMS}, or leave streams out: as many as fill the GPU"),
        )),
        _ => Ok(()),
    }
}

impl Lanes {
    /// Of `count` products by this plan, on as many streams as were asked for, or by rule.
    pub(crate) fn of(plan: &GemmPlan, count: usize, asked: Option<usize>) -> Self {
        let product = plan.candidate.as_ref().and_then(|candidate| candidate.product());
        let waves = product.map_or(0.0, Product::waves);
        Self::new(count, asked, waves, [plan.scratch_bytes(), product.map_or(0, Product::workspace_bytes)])
    }

    pub(super) fn new(count: usize, asked: Option<usize>, waves: f32, [scratch, workspace]: [usize; 2]) -> Self {
        let streams = asked.unwrap_or_else(|| by_rule(waves)).clamp(1, MOST_STREAMS).min(count.max(1));
        Self { streams, asked, count, waves, scratch, workspace }
    }

    /// Streams beside that of the handle.
    pub(crate) fn sides(&self) -> usize {
        self.streams - 1
    }

    /// Bytes of workspace for a stream that has not the handle's.
    fn workspace_bytes(&self) -> usize {
        if self.workspace == 0 { 0 } else { (self.workspace + UNSAID).next_multiple_of(GRAIN) }
    }

    /// Bytes of the second and of each further stream: scratch, then workspace.
    fn each(&self) -> usize {
        self.scratch.next_multiple_of(GRAIN) + self.workspace_bytes()
    }

    /// Bytes of scratch memory of all together.
    pub(crate) fn bytes(&self) -> usize {
        match self.sides() {
            0 => self.scratch,
            sides => self.scratch.next_multiple_of(GRAIN) + sides * self.each(),
        }
    }

    /// The same up to where other scratch memory may begin.
    pub(crate) fn bytes_before(&self) -> usize {
        self.bytes().next_multiple_of(GRAIN)
    }

    /// Offset and length of a stream's scratch, and of its workspace unless that is the handle's.
    pub(crate) fn parts(&self, lane: usize) -> [Option<(usize, usize)>; 2] {
        let Some(before) = lane.checked_sub(1) else { return [Some((0, self.scratch)), None] };
        let first = self.scratch.next_multiple_of(GRAIN);
        let at = first + before * self.each();
        [Some((at, self.scratch)), Some((at + first, self.workspace_bytes()))]
    }

    /// How the products go.
    pub(crate) fn how(&self) -> String {
        match self.sides() {
            0 => "one after the other on the handle's stream".to_string(),
            1 => "in turns on two streams, the handle's and one beside it, which waits for it and is waited for"
                .to_string(),
            sides => format!(
                "in turns on {} streams, the handle's and {sides} beside it, which wait for it and are waited for",
                self.streams
            ),
        }
    }

    /// Why, and what it costs.
    pub(crate) fn explain(&self) -> String {
        let Self { streams, asked, count, waves, scratch, .. } = *self;
        let workspace = self.workspace_bytes();
        let why = match (asked, streams) {
            (Some(asked), _) if asked == streams => "as asked".to_string(),
            (Some(asked), _) => format!("{asked} were asked for, more than there are products ({count})"),
            (None, 1) if waves >= 1.0 => format!("a product alone fills the GPU, {waves:.2} times"),
            (None, 1) if waves > 0.0 => "there is no more to run beside a product".to_string(),
            (None, 1) => "how much of the GPU a product fills is not known".to_string(),
            (None, _) if streams == count => format!("a product fills {waves:.2} of the GPU, and there are {count}"),
            (None, MOST_STREAMS) => format!("a product fills {waves:.2} of the GPU, and {MOST_STREAMS} are the most"),
            (None, _) => format!("a product fills {waves:.2} of the GPU"),
        };
        let all = self.bytes();
        let memory = match streams {
            1 => String::new(),
            _ => format!(
                ", {scratch} for each stream and {workspace} of workspace for each but the handle's, which has its own"
            ),
        };
        format!("streams: {streams}: {why}; {all} bytes of the handle's scratch memory{memory}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams(count: usize, asked: Option<usize>, waves: f32) -> usize {
        Lanes::new(count, asked, waves, [0, 0]).streams
    }

    #[test]
    fn streams_are_as_many_as_products_fill_the_gpu() {
        let cases = [
            (0.01, 8),
            (0.12, 8),
            (0.125, 8),
            (0.24, 5),
            (0.25, 4),
            (0.3, 4),
            (0.34, 3),
            (0.5, 2),
            (0.51, 2),
            (0.99, 2),
            (1.0, 1),
            (7.0, 1),
        ];
        for (waves, want) in cases {
            assert_eq!(streams(64, None, waves), want, "{waves} waves");
        }
        for unknown in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(streams(64, None, unknown), 1, "{unknown} waves");
        }
        assert_eq!([0, 1, 2, 3, 70].map(|count| streams(count, None, 0.1)), [1, 1, 2, 3, 8]);
        assert_eq!([0, 1, 3, 70].map(|count| streams(count, Some(8), 7.0)), [1, 1, 3, 8], "as asked");
        assert_eq!(streams(70, Some(1), 0.1), 1);
        assert!([None, Some(1), Some(8)].into_iter().all(|asked| check_streams(asked).is_ok()));
        for bad in [0, 9, usize::MAX] {
            let error = check_streams(Some(bad)).unwrap_err().to_string();
            assert!(error.contains(&format!("{bad} streams")) && error.contains("1 to 8"), "{error}");
        }
    }

    /// Scratch and workspace of no stream have a byte in common, lie within what is reserved and begin where they may.
    #[test]
    fn each_stream_has_memory_of_its_own() {
        for (scratch, workspace) in [(0, 0), (0, 5), (1000, 0), (1024, 1 << 20), (1, 1), (300, 257)] {
            for count in 1..=MOST_STREAMS {
                let lanes = Lanes::new(count, Some(count), 1.0, [scratch, workspace]);
                let mut end = 0;
                for lane in 0..count {
                    let [own, work] = lanes.parts(lane);
                    assert_eq!(own.map(|(_, bytes)| bytes), Some(scratch));
                    assert_eq!(work.is_some(), lane > 0);
                    assert!(work.is_none_or(|(_, bytes)| (bytes == 0) == (workspace == 0) && bytes >= workspace));
                    for (at, bytes) in own.into_iter().chain(work) {
                        assert!(at >= end && at.is_multiple_of(GRAIN), "{lanes:?}, stream {lane}");
                        end = at + bytes;
                    }
                }
                assert!(end <= lanes.bytes() && lanes.bytes() < end + GRAIN, "{lanes:?}: {end}");
            }
        }
        assert_eq!(Lanes::new(1, None, 0.1, [1000, 7]).bytes(), 1000, "one stream has the handle's workspace");
        assert_eq!(Lanes::new(3, Some(3), 0.1, [1000, 7]).bytes(), 1024 + 2 * (1024 + 256));
    }

    #[test]
    fn lanes_say_why_and_what_they_cost() {
        let text = |count, asked, waves| Lanes::new(count, asked, waves, [1000, 7]).explain();
        for (text, words) in [
            (text(64, None, 2.25), ["streams: 1: a product alone fills the GPU, 2.25 times", "; 1000 bytes of"]),
            (text(64, None, 0.0), ["streams: 1: how much", "is not known; 1000 bytes of"]),
            (text(1, None, 0.1), ["streams: 1: there is no more", "; 1000 bytes of"]),
            (text(64, None, 0.26), ["streams: 4: a product fills 0.26 of the GPU", "; 4864 bytes of"]),
            (
                text(64, Some(2), 3.0),
                ["streams: 2: as asked;", "1000 for each stream and 256 of workspace for each but"],
            ),
            (text(3, Some(8), 3.0), ["streams: 3: 8 were asked for", "products (3); "]),
            (text(1, Some(4), 0.1), ["streams: 1: 4 were asked for", "products (1); 1000 bytes of"]),
            (text(3, None, 0.1), ["streams: 3: a product fills 0.10 of the GPU", "and there are 3; "]),
            (text(64, None, 0.05), ["streams: 8: a product fills 0.05 of the GPU", "and 8 are the most; "]),
        ] {
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        let how = |streams| Lanes::new(8, Some(streams), 1.0, [0, 0]).how();
        assert!(
            how(1).contains("one after the other") && how(2).contains("two streams") && how(8).contains("8 streams")
        );
        assert!(how(8).contains("7 beside it"));
    }
}
