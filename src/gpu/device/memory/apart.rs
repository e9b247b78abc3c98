//! [`check_apart`]: what a call writes lies apart from all that it reads, and from what else it writes.
//!
//! Threads of one launch read and write in no order, so that a byte that is both, or that two results share, holds anything. Borrows of one buffer
//! cannot overlap so; parts of one allocation that came in by their addresses ([`DeviceBuffer::from_raw`](super::DeviceBuffer::from_raw)), and numbers of a layout that two tensors
//! share, can.

use super::Span;
use crate::error::{Error, Result};

/// What messages call an operand, and where it lies.
pub(crate) type Named<'s> = (&'static str, Span<'s>);

/// Refuses a result that lies where something is read, or where an earlier result does. An operand without bytes lies apart from all.
pub(crate) fn check_apart<'s>(
    read: impl Iterator<Item = Named<'s>> + Clone,
    written: impl Iterator<Item = Named<'s>> + Clone,
) -> Result<()> {
    for (at, (which, result)) in written.clone().enumerate() {
        let mut others = read.clone().chain(written.clone().take(at));
        if let Some((what, other)) = others.find(|(_, other)| other.overlaps(&result)) {
            return Err(Error::shape(
                which,
                format!("{} bytes at {:#x}", result.bytes, result.address),
                format!("must not overlap the {what}, {} bytes at {:#x}", other.bytes, other.address),
                "pass memory of its own",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// For tests of calls without a GPU: that operands of `bytes` bytes each are taken where all lie apart, those of `read` also all in one place, and that each that is written
    /// is refused at the place of every other one, by both names. `call` is given where each of `names` lies, those of `written` last.
    #[track_caller]
    pub(crate) fn assert_apart(names: &[&str], written: usize, bytes: usize, call: impl Fn(&[Span<'_>]) -> Result<()>) {
        let apart = |i: usize| 4096 * (i as u64 + 1);
        let ask = |place: &dyn Fn(usize) -> u64| {
            let spans: Vec<_> = (0..names.len()).map(|i| Span::unguarded(place(i), bytes)).collect();
            call(&spans).map_or_else(|refused| refused.to_string(), |()| String::new())
        };
        let read = names.len() - written;
        assert_eq!([ask(&apart), ask(&|i| apart(if i < read { 0 } else { i }))], ["", ""]);
        for (moved, onto) in (read..names.len()).flat_map(|moved| (0..moved).map(move |onto| (moved, onto))) {
            let said = ask(&|i| if i == moved { apart(onto) } else { apart(i) });
            let says = said.contains("must not overlap") && said.contains(names[moved]) && said.contains(names[onto]);
            assert!(says, "{} at {}: {said:?}", names[moved], names[onto]);
        }
    }

    #[test]
    fn results_lie_apart_from_what_is_read_and_from_each_other() {
        let span = |address, bytes| Span::unguarded(address, bytes);
        let (x, none, codes) = (span(4096, 1024), span(5000, 0), span(8192, 64));
        let check = |address, bytes| {
            let amax = span(address, bytes);
            check_apart([("x", x), ("bias", none)].into_iter(), [("codes", codes), ("amax", amax)].into_iter())
        };
        for (address, bytes) in [(5120, 3072), (0, 4096), (8256, 10), (5000, 0)] {
            check(address, bytes).unwrap();
        }
        for (address, bytes, other) in
            [(5119, 1, "the x, 1024"), (0, 4097, "the x"), (8255, 4, "the codes, 64 bytes at 0x2000")]
        {
            let error = check(address, bytes).unwrap_err().to_string();
            assert!(error.contains(&format!("amax: {bytes} bytes at {address:#x}")), "{error}");
            assert!(error.contains(&format!("must not overlap {other}")) && error.contains("its own"), "{error}");
        }
        assert_apart(&["x", "bias", "codes", "amax"], 2, 24, |at| {
            check_apart([("x", at[0]), ("bias", at[1])].into_iter(), [("codes", at[2]), ("amax", at[3])].into_iter())
        });
    }
}
