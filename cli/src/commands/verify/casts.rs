//! Casts to groupings that no product reads, against their definition: codes, scales in every order, values.

use scaled_gemm::checkpoint::PlainRows;
use scaled_gemm::reference::definition;
use scaled_gemm::{CastRecipe, CastScales, CastScheme};
use serde_json::json;

use super::sources::Kind;
use super::{Findings, WHOLE_TILES, WIDE, differences, spell, verdict};
use crate::device::Caster;
use crate::output::Failure;

/// Casts by every order and kind of scales, by one of them each type of input and kind of data, and back.
pub fn check(caster: &mut dyn Caster, scheme: CastScheme, seed: u64, found: &mut Findings<6>) -> Result<(), Failure> {
    let [rows, cols] = WHOLE_TILES;
    let (mut codes, mut scales, mut values, mut recipes) = (0, 0, 0, 0);
    for order in CastScales::ALL {
        let exact = CastRecipe::new(scheme.with_scales(order));
        let kinds = if order == CastScales::Ue8m0 { vec![exact] } else { vec![exact, exact.power_of_two()] };
        for recipe in kinds {
            recipes += 1;
            // The orders differ in where scales lie, not in what is read: one of them for every type of input.
            let types = if recipe == CastRecipe::new(scheme) { &WIDE[..] } else { &WIDE[..1] };
            let kinds = if recipe.scheme() == scheme { &Kind::ALL[..] } else { &Kind::ALL[..1] };
            let types = types.iter().map(|dtype| (*dtype, Kind::Normal));
            for (i, (dtype, kind)) in types.chain(kinds[1..].iter().map(|kind| (WIDE[0], *kind))).enumerate() {
                let x = kind.matrix(rows, cols, dtype, seed.wrapping_add(i as u64));
                let want = definition::cast(&x.view().into(), recipe)?;
                let got = caster.cast(&PlainRows::from_f32(x.view(), dtype, Vec::new())?, recipe)?;
                codes += differences(want.codes(), got.codes(), |a, b| a == b);
                scales += differences(&want.device_scales(), &got.device_scales(), |a, b| a == b);
                let right = definition::cast_back(&want, dtype);
                let back = caster.cast_back(&want, dtype, Vec::new())?.to_f32();
                values += right.iter().zip(&back).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            }
        }
    }
    let turned = if scheme.is_transposed() { ", transposed" } else { "" };
    let name = format!("{} {}{turned}", scheme.format(), scheme.group());
    let wrong = codes + scales + values > 0;
    found.rows.push([
        format!("{}{turned}", scheme.group()),
        scheme.format().to_string(),
        spell(codes),
        spell(scales),
        spell(values),
        verdict(!wrong),
    ]);
    found.values.push(json!({
        "cast": name, "recipes": recipes, "wrong_codes": codes, "wrong_scales": scales, "wrong_values": values,
    }));
    if wrong {
        found.failed.push(format!("cast to {name}"));
    }
    Ok(())
}
