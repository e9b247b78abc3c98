//! TileKernels' casts to groupings that no product reads, and SwiGLU.

use ndarray::{Array2, ArrayView2};
use scaled_gemm::reference::{CastInput, Swiglu, cast, cast_scales, fp4_to_fp8, swiglu};
use scaled_gemm::{CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, HostCastMatrix};
use serde_json::Value;

use crate::{array, bits, bytes, floats, hex, ints, row, same};

fn scheme(format: CodeFormat, group: CastGroup) -> CastScheme {
    CastScheme::new(format, group).unwrap()
}

/// Every way to say the same cast: exact numbers, or powers of two as numbers and as bytes.
fn check_one(x: ArrayView2<f32>, scheme: CastScheme, expect: &Value, codes: &[u8]) {
    let recipe = CastRecipe::new(scheme);
    let byte = expect.get("ue8m0").map(|byte| hex(byte)[0]);
    let recipes = match byte {
        None => vec![recipe],
        Some(_) => vec![recipe.power_of_two(), CastRecipe::new(scheme.with_scales(CastScales::Ue8m0))],
    };
    for recipe in recipes {
        let q = cast(&x.into(), recipe).unwrap();
        assert_eq!(q.codes(), codes);
        assert_eq!(q.scales().len(), 1);
        same(q.scales()[0], expect["sf"].get(0).unwrap_or(&expect["sf"]));
        assert_eq!(cast_scales(&x.into(), recipe).unwrap(), q.scales());
        if recipe.scheme().scales() == CastScales::Ue8m0 {
            assert_eq!(Some(q.device_scales()[0]), byte);
        }
    }
}

/// True if the case was checked.
pub fn check(id: &str, input: &Value, expect: &Value) -> bool {
    match id {
        "e4m3_g128_fp32sf"
        | "e4m3_g128_pow2"
        | "e4m3_g32_zero_block"
        | "e2m1_g32_fp32sf"
        | "e2m1_g32_zero"
        | "bf16_hidden7168_edge" => {
            let x = array(&input["x"]);
            let format = if id.starts_with("e2m1") { CodeFormat::E2M1 } else { CodeFormat::E4M3 };
            let group = match input["group"].as_u64() {
                Some(128) => CastGroup::Group1x128,
                Some(7168) => CastGroup::Row,
                _ => CastGroup::Group1x32,
            };
            check_one(row(&x), scheme(format, group), expect, &bytes(&expect["data"]));
        }
        "block_32x32_e2m1" => {
            let mut x = Array2::zeros((32, 32));
            for (place, value) in input["nonzero"].as_object().unwrap() {
                let (i, j) = place.split_once(',').unwrap();
                x[[i.parse().unwrap(), j.parse::<usize>().unwrap()]] = value.as_f64().unwrap() as f32;
            }
            let tile = scheme(CodeFormat::E2M1, CastGroup::Tile32x32);
            check_one(x.view(), tile, expect, &bytes(&expect["data"]));
        }
        "fp32_amax_contract_requant" => {
            let group = scheme(CodeFormat::E4M3, CastGroup::Group1x32);
            let q = HostCastMatrix::from_logical(group, 1, 32, hex(&input["x_bytes"]), vec![bits(&input["x_sf"])]);
            let again = cast(&CastInput::from(&q.unwrap()), CastRecipe::new(group)).unwrap();
            assert_eq!(again.codes(), bytes(&expect["data"]));
            same(again.scales()[0], &expect["sf"]);
        }
        "ue8m0_pack_M3_nk5" => {
            let exponents = input["exp_bytes_mk"].as_array().unwrap();
            let scales = exponents.iter().flat_map(ints).map(|byte| f32::from_bits((byte as u32) << 23)).collect();
            let bytes = scheme(CodeFormat::E4M3, CastGroup::Group1x128).with_scales(CastScales::Ue8m0);
            let q = HostCastMatrix::from_logical(bytes, 3, 640, vec![0; 3 * 640], scales).unwrap();
            assert_eq!(q.device_scales(), hex(&expect["bytes"]));
            let words: Vec<_> =
                q.device_scales().chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
            let wanted = expect["words_le"].as_array().unwrap().iter().map(|w| bits(w).to_bits());
            assert!(words.into_iter().eq(wanted));
        }
        "per_channel_128x1" => {
            let columns: Vec<Vec<f32>> = input["columns"].as_array().unwrap().iter().map(array).collect();
            // Columns come in sixteens: zeros beside the two.
            let x = Array2::from_shape_fn((128, 16), |(i, j)| columns.get(j).map_or(0.0, |column| column[i]));
            let plain = scheme(CodeFormat::E4M3, CastGroup::Group128x1);
            let [q, t] = [plain, plain.transposed().unwrap()]
                .map(|scheme| cast(&CastInput::from(x.view()), CastRecipe::new(scheme)).unwrap());
            for (j, codes) in expect["data_per_channel"].as_array().unwrap().iter().map(bytes).enumerate() {
                assert!(q.codes().iter().skip(j).step_by(16).eq(&codes));
                assert_eq!(t.codes()[j * 128..][..128], codes);
                same(q.scales()[j], &expect["sf"][j]);
                same(t.scales()[j], &expect["sf"][j]);
            }
        }
        "lossless_fp4_to_fp8" => {
            let exponents = ints(&input["in_exp"]);
            let scales = exponents.iter().map(|byte| f32::from_bits((*byte as u32) << 23)).collect();
            // +6 and +0.5 in turn.
            let group = scheme(CodeFormat::E2M1, CastGroup::Group1x32).with_scales(CastScales::Ue8m0);
            let q = HostCastMatrix::from_logical(group, 1, 128, vec![0x17; 64], scales).unwrap();
            let wide = fp4_to_fp8(&q).unwrap();
            assert_eq!(u64::from(wide.device_scales()[0]), expect["out_exp"].as_u64().unwrap());
            for (k, multiplier) in ints(&expect["multiplier_exp_bytes"]).into_iter().enumerate() {
                let [high, low] = ["code7_e4m3", "code1_e4m3"].map(|key| hex(&expect[key][k])[0]);
                assert!(wide.codes()[32 * k..][..32].chunks(2).all(|pair| pair == [high, low]));
                assert_eq!(q.scales()[k] / wide.scales()[0], f32::from_bits((multiplier as u32) << 23));
            }
        }
        "swiglu_clamp10" => {
            let half = |key: &str| input[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32);
            let x: Vec<f32> = half("l").chain(half("r")).collect();
            let clamp = input["clamp"].as_f64().map(|c| c as f32);
            let (values, counts) = swiglu(row(&x), &Swiglu { clamp, ..Swiglu::default() }).unwrap();
            let tolerance = expect["rtol"].as_f64().unwrap();
            for (got, want) in values.iter().zip(floats(&expect["y_f32"])) {
                let off = f64::from((got - want).abs());
                assert!(off <= tolerance * f64::from(want.abs()) && got.is_sign_negative() == want.is_sign_negative());
            }
            let counts = [counts.left_above, counts.right_above, counts.right_below].map(|count| count as usize);
            assert_eq!(counts.to_vec(), ints(&expect["clamp_counts"]));
        }
        _ => return false,
    }
    true
}
