//! A Y in the memory of X, which only unsafe code can say: what is saved is X, or Y is refused.

use scaled_gemm::cudarc::driver::DevicePtr;
use scaled_gemm::{DeviceBuffer, Error};

use super::*;

#[test]
fn what_is_saved_is_x_where_y_lies() {
    let Some(handle) = handle() else { return };
    let (dtype, side, tokens) = (DType::Bf16, 128, 32);
    let mut rng = Noise::new(811);
    let mut random = |rows: usize| Array2::from_shape_simple_fn((rows, side), || rng.normal());
    let [w, x, dy] = [side, tokens, tokens].map(|rows| Uploaded::new(&handle, &random(rows), dtype, 0));
    let bytes = tokens * side * 2;
    let memory = handle.stream().alloc_zeros::<u8>(bytes).unwrap();
    let (base, _guard) = memory.device_ptr(handle.stream());
    // SAFETY: of `memory`, which lives to the end, on this handle's stream.
    let mut there = unsafe { DeviceBuffer::from_raw(handle.stream(), base, bytes, ()) }.unwrap();
    let read = handle.read_bytes(&x.buffer.view()).unwrap();
    for (recipe, kept) in [
        (LinearRecipe::Nvfp4Row, KeptInput::Quantized),
        (LinearRecipe::Fp8Row, KeptInput::Quantized),
        (LinearRecipe::Nvfp4Row, KeptInput::HighPrecision),
        (LinearRecipe::Fp8Row, KeptInput::HighPrecision),
    ] {
        let mut layer = match Linear::new(&handle, &w.matrix(), recipe, tokens) {
            Ok(layer) => layer.with_kept_input(&handle, kept).unwrap(),
            Err(Error::Unsupported { reason, .. }) => {
                println!("skipped: {recipe}: {reason}");
                continue;
            }
            Err(error) => panic!("{recipe}: {error}"),
        };
        let mut saved = layer.saved_input(&handle).unwrap();
        let gradient = |layer: &mut Linear, saved: &SavedInput| {
            let (mut gradients, mut dx) =
                (Gradients::new(&handle, layer, false, 0), Target::new(&handle, dtype, tokens, side, 0));
            layer.backward_into(&handle, &dy.matrix(), saved, dx.matrix(), gradients.views()).unwrap();
            gradients.read(&handle).0
        };
        let mut y = Target::new(&handle, dtype, tokens, side, 0);
        layer.forward_saving_into(&handle, &x.matrix(), y.matrix(), &mut saved).unwrap();
        let want = gradient(&mut layer, &saved);
        handle.write(&mut there.view_mut(), &read[..bytes]).unwrap();
        let x = MatRef::new(&there, dtype, tokens, side).unwrap();
        // SAFETY: the same memory, which a layer that saves X first may write.
        let over = unsafe { DeviceBytesMut::from_raw(base, bytes) };
        let over = MatMut::new(over, dtype, tokens, side).unwrap();
        match (kept, layer.forward_saving_into(&handle, &x, over, &mut saved)) {
            (KeptInput::HighPrecision, done) => {
                let text = done.unwrap_err().to_string();
                assert!(text.contains("Y") && text.contains("overlap the saved X"), "{recipe}: {text}");
            }
            (KeptInput::Quantized, done) => {
                done.unwrap();
                assert!(gradient(&mut layer, &saved) == want, "{recipe}: dW of another X");
            }
        }
    }
    handle.synchronize().unwrap();
}
