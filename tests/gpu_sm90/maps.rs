//! Tensor maps of products that no plan holds: encoded once, anew for what moved or changed, and those of a graph are its own.

use scaled_gemm::{FusedGemmArgs, GroupedWeightGradient};

use super::*;
use crate::told::told;

/// Operands whose maps were encoded.
fn encoded_by(work: impl FnOnce()) -> Vec<String> {
    let events = told("kernels::sm90_maps", work).1;
    events.into_iter().filter_map(|mut fields| fields.remove("operand")).collect()
}

const CONFIG: Sm90Config = Sm90Config::Tile128x128;

#[test]
fn equal_calls_encode_none_and_moved_operands_are_found() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(160);
    let (m, n, k, places) = (512, 256, 400, [(0, 200), (256, 77)]);
    let (starts, counts): (Vec<i64>, Vec<i64>) = places.into_iter().unzip();
    let (starts, counts) = (numbers(&handle, &starts), numbers(&handle, &counts));
    let layers = [(); 2].map(|()| Groups::new(&handle, &mut rng, [m, n, k], places.len(), DType::Bf16));
    let wants = layers.each_ref().map(|of| of.want(&handle, 1.0, &places));
    let poison = vec![0xFFu8; m * n * 2];
    let mut all = [(); 2].map(|()| poisoned(&handle, m * n * 2));
    let mut call = |layer: usize, to: usize| {
        let d = &mut all[to];
        handle.stream().memcpy_htod(&poison, d).unwrap();
        let encoded = encoded_by(|| {
            let rows = GroupedRows::Contiguous { starts: (&starts).into(), counts: (&counts).into() };
            layers[layer].enqueue(&handle, places.len(), rows, d, 0, |args| args.config(CONFIG)).unwrap();
        });
        assert!(rows_of_d(&handle, d, m, 2 * n, 0) == wants[layer], "layer {layer} to {to}");
        encoded
    };
    assert_eq!(call(0, 0), ["A", "B", "D"]);
    assert!(call(0, 0).is_empty());
    assert_eq!([call(0, 1), call(0, 1), call(0, 0)], [vec!["D"], vec![], vec!["D"]]);
    // Another layer of the same shape, and both in turns.
    assert_eq!(call(1, 0), ["A", "B", "D"]);
    assert!((0..4).all(|turn| call(turn % 2, 0).is_empty()));
    // Another matrix in the memory of D, and the first one again.
    let fewer = Groups::new(&handle, &mut rng, [256, 2 * n, k], places.len(), DType::Bf16);
    let taken = [(0, 200), (0, 0)];
    let want = fewer.want(&handle, 1.0, &taken);
    let [d, _] = &mut all;
    for turn in 0..2 {
        handle.stream().memcpy_htod(&poison, d).unwrap();
        let rows = GroupedRows::Contiguous { starts: (&starts).into(), counts: (&counts).into() };
        let encoded = encoded_by(|| {
            fewer.enqueue(&handle, places.len(), rows, d, 0, |args| args.config(CONFIG)).unwrap();
        });
        assert_eq!(encoded.len(), if turn == 0 { 3 } else { 0 }, "{encoded:?}");
        assert!(rows_of_d(&handle, d, 256, 4 * n, 0) == want);
    }
    // Its maps were kept, and are still those of that memory with that shape.
    handle.stream().memcpy_htod(&poison, d).unwrap();
    let rows = GroupedRows::Contiguous { starts: (&starts).into(), counts: (&counts).into() };
    let encoded = encoded_by(|| {
        layers[0].enqueue(&handle, places.len(), rows, d, 0, |args| args.config(CONFIG)).unwrap();
    });
    assert!(encoded.is_empty(), "{encoded:?}");
    assert!(rows_of_d(&handle, d, m, 2 * n, 0) == wants[0]);
}

/// A graph writes the D that it was captured with, also when the same call went elsewhere since.
#[test]
fn graphs_have_maps_of_their_own() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(161);
    let (slot, n, k) = (256, 256, 656);
    let of = Groups::new(&handle, &mut rng, [2 * slot, n, k], 2, DType::Bf16);
    let counts = numbers(&handle, &[256, 130]);
    let want = of.want(&handle, 1.0, &[(0, 256), (256, 130)]);
    let [mut first, mut other] = [(); 2].map(|()| poisoned(&handle, 2 * slot * n * 2));
    handle.load_kernels(&[KernelFamily::Sm90]).unwrap();
    let call = |d: &mut CudaSlice<u8>| {
        let rows = GroupedRows::Masked { slot_rows: slot, counts: (&counts).into() };
        of.enqueue(&handle, 2, rows, d, 0, |args| args.config(CONFIG))
    };
    let graph = capture_among_others(&handle, || call(&mut first)).unwrap();
    call(&mut other).unwrap();
    assert!(rows_of_d(&handle, &other, 2 * slot, 2 * n, 0) == want);
    let poison = vec![0xFFu8; 2 * slot * n * 2];
    for _ in 0..2 {
        for d in [&mut first, &mut other] {
            handle.stream().memcpy_htod(&poison, d).unwrap();
        }
        handle.launch(&graph).unwrap();
        assert!(rows_of_d(&handle, &first, 2 * slot, 2 * n, 0) == want);
        assert!(handle.stream().clone_dtoh(&other).unwrap() == poison);
    }
}

/// The other products without a plan: SwiGLU in one kernel and in two steps, and the gradient of all matrices.
#[test]
fn fused_products_and_gradients_encode_once() {
    let Some(handle) = hopper() else { return };
    let (m, n, k) = (256, 2048, 7168);
    let zeros = |scheme, rows, cols| QuantMatrix::zeros(&handle, scheme, rows, cols).unwrap();
    let (a, b) = (zeros(VEC, m, k), zeros(BLK, 2 * n, k));
    let mut d = handle.alloc(m * n * 2).unwrap();
    for steps in [true, false] {
        let mut call = || {
            encoded_by(|| {
                let args = FusedGemmArgs::swiglu(&a, &b, MatMut::new(&mut d, DType::Bf16, m, n).unwrap());
                let args = if steps { args } else { args.config(CONFIG) };
                assert_eq!(args.explain(&handle).unwrap().contains("for both products"), steps);
                handle.fused_gemm(args).unwrap();
            })
        };
        assert_eq!([call(), call()], [vec!["A", "B"], vec![]], "in steps: {steps}");
    }
    let (dy, x, counts) = (zeros(VEC, 128, 512), zeros(VEC, 256, 512), numbers(&handle, &[256, 100]));
    let mut dw = handle.alloc(2 * 128 * 256 * 4).unwrap();
    let mut call = || {
        encoded_by(|| {
            let rows = GroupedRows::Masked { slot_rows: 256, counts: (&counts).into() };
            let dw = MatMut::new(&mut dw, DType::F32, 2 * 128, 256).unwrap();
            handle.grouped_weight_gradient(GroupedWeightGradient::whole(&dy, &x, 2, rows, dw)).unwrap();
        })
    };
    assert_eq!([call(), call()], [vec!["A", "B"], vec![]]);
}
