//! Calls whose operands lie where others do: that they are refused by both names, and have written nothing.

use scaled_gemm::cudarc::driver::DevicePtr;
use scaled_gemm::{DeviceBuffer, Error, Handle, Result};

/// Bytes from a place to the next: none is longer.
const PLACE: usize = 1 << 17;

/// Calls `call` with memory for operand i, so many bytes of zeros: first all of it apart, then each of the last `written` at the place of every one before it. `names` are what messages say;
/// nothing where those depend on how a call is made.
#[track_caller]
pub fn refusals(
    handle: &Handle,
    names: &[&str],
    written: usize,
    call: impl Fn(&dyn Fn(usize, usize) -> DeviceBuffer) -> Result<()>,
) {
    let memory = handle.stream().alloc_zeros::<u8>(names.len() * PLACE).unwrap();
    let (base, _guard) = memory.device_ptr(handle.stream());
    let ask = |place: &dyn Fn(usize) -> usize| {
        call(&|i, bytes| {
            assert!((1..=PLACE).contains(&bytes), "{}: {bytes} bytes", names[i]);
            // SAFETY: a part of `memory`, which lives to the end, on this handle's stream; nobody else knows it.
            unsafe { DeviceBuffer::from_raw(handle.stream(), base + (place(i) * PLACE) as u64, bytes, ()) }.unwrap()
        })
    };
    match ask(&|i| i) {
        Err(Error::Pair { reason, .. }) => return println!("skipped: {reason}"),
        done => done.unwrap(),
    }
    // So that what writes, writes something else.
    // SAFETY: as above; no other buffer of it is alive.
    let mut all = unsafe { DeviceBuffer::from_raw(handle.stream(), base, names.len() * PLACE, ()) }.unwrap();
    handle.write(&mut all.view_mut(), &vec![0xFFu8; names.len() * PLACE]).unwrap();
    let before = handle.read_bytes(&all.view()).unwrap();
    let first = names.len() - written;
    for (moved, onto) in (first..names.len()).flat_map(|moved| (0..moved).map(move |onto| (moved, onto))) {
        let result = ask(&|i| if i == moved { onto } else { i });
        let said = result.map_or_else(|refused| refused.to_string(), |()| "taken".to_string());
        let all = ["must not overlap", names[moved], names[onto], "; pass memory of its own"];
        let says = all.iter().all(|words| said.contains(words));
        assert!(says, "operand {moved} ({}) at {onto} ({}): {said}", names[moved], names[onto]);
    }
    assert!(handle.read_bytes(&all.view()).unwrap() == before, "a refused call has written");
}
