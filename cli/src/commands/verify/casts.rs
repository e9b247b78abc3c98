//! Casts to groupings that no product reads, against their definition: codes, scales in every order, values.

use scaled_gemm::checkpoint::PlainRows;
use scaled_gemm::reference::definition;
use scaled_gemm::{CastRecipe, CastScales, CastScheme};
use serde_json::json;

use super::kinds::{Draw, Kind};
use super::sources::SHAPE;
use super::tally::same_number;
use super::{Findings, WIDE, differences, spell, verdict};
use crate::device::Caster;
use crate::output::Failure;

/// Casts by every order of scales, exact and powers of two, of every kind of data, and back; types of elements take turns.
pub fn check(caster: &mut dyn Caster, scheme: CastScheme, seed: u64, found: &mut Findings<6>) -> Result<(), Failure> {
    let (mut codes, mut scales, mut values, mut recipes) = (0, 0, 0, 0);
    for order in CastScales::ALL {
        let exact = CastRecipe::new(scheme.with_scales(order));
        for recipe in if order == CastScales::Ue8m0 { vec![exact] } else { vec![exact, exact.power_of_two()] } {
            for (at, kind) in Kind::ALL.into_iter().enumerate() {
                let [dtype, wide] = [at + recipes, at / 3 + recipes].map(|turn| WIDE[turn % 3]);
                let seed = seed.wrapping_add(at as u64);
                let x = kind.matrix(Draw { shape: SHAPE, dtype, format: scheme.format(), seed });
                let want = definition::cast(&x.view().into(), recipe)?;
                let got = caster.cast(&PlainRows::from_f32(x.view(), dtype, Vec::new())?, recipe)?;
                codes += differences(want.codes(), got.codes(), |a, b| a == b);
                scales += differences(&want.device_scales(), &got.device_scales(), |a, b| a == b);
                let right = definition::cast_back(&want, wide);
                let back = caster.cast_back(&want, wide, Vec::new())?.to_f32();
                values += right.iter().zip(&back).filter(|(a, b)| !same_number(a, b)).count();
            }
            recipes += 1;
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
        "cast": name, "recipes": recipes, "data": Kind::ALL.map(Kind::name), "codes_different": codes,
        "scales_different": scales, "decoded_different": values, "passed": !wrong,
    }));
    if wrong {
        found.failed.push(format!("cast to {name}"));
    }
    Ok(())
}
