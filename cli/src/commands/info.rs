//! `info`: the device, its libraries, and which pairs of schemes run on it by which formulation.

use scaled_gemm::{DType, Operand, Scheme};
use serde_json::{Value, json};

use crate::args::{DeviceChoice, InfoArgs};
use crate::device;
use crate::output::{Failure, Form, Outcome, table};

/// Shapes asked about: any legal one, and one with few rows of A, for which there are ways of their own.
const SHAPE: [usize; 3] = [4096, 4096, 4096];
const FEW_ROWS: [usize; 3] = [8, SHAPE[1], SHAPE[2]];

pub fn run(args: &InfoArgs, choice: DeviceChoice) -> Result<Outcome, Failure> {
    let mut device = device::open(choice)?;
    let facts = device.facts();
    let (mut rows, mut reasons, mut pairs) = (Vec::new(), String::new(), Vec::new());
    let plain = [DType::Bf16, DType::F16].map(Operand::Plain);
    for a in Scheme::ALL.into_iter().map(Operand::from).chain(plain) {
        for b in Scheme::ALL {
            let mut support = device.support(SHAPE, a, b, DType::Bf16);
            let mut few = device.support(FEW_ROWS, a, b, DType::Bf16).ways;
            support.refused.retain(|(what, _)| !few.contains(what));
            few.retain(|way| !support.ways.contains(way));
            if !support.refused.is_empty() {
                reasons += &format!("{a} x {b}\n");
                support.refused.iter().for_each(|(what, why)| reasons += &format!("    not by {what}: {why}\n"));
            }
            let refused: Vec<Value> =
                support.refused.iter().map(|(what, why)| json!({"formulation": what, "reason": why})).collect();
            pairs.push(json!({
                "a": a.to_string(), "b": b.to_string(), "formulations": support.ways, "of_few_rows_alone": few,
                "refused": refused,
            }));
            let few = few.iter().map(|way| format!("{way} (few rows)"));
            let ways: Vec<_> = support.ways.iter().cloned().chain(few).collect();
            if !ways.is_empty() {
                rows.push([a.to_string(), b.to_string(), ways.join(", ")]);
            }
        }
    }
    let mut text = format!("device        {}\n", device.described());
    for (name, value) in &facts {
        text += &format!("{name:<13} {value}\n");
    }
    let [m, n, k] = SHAPE;
    let few = FEW_ROWS[0];
    text += &format!("\nPairs that run here, to BF16, at m = {m}, n = {n}, k = {k}, and (few rows) at m = {few}:\n\n");
    text += &table(["A", "B", "by"], 3, &rows);
    if rows.is_empty() {
        text += "none\n";
    }
    text += &match args.reasons {
        true => format!("\nWhat does not run, and why:\n\n{reasons}"),
        false => "\n--reasons says what does not run, and why; --json says all.\n".to_string(),
    };
    let facts: serde_json::Map<String, Value> =
        facts.into_iter().map(|(name, value)| (name.to_string(), Value::from(value))).collect();
    let value = json!({"device": device.name(), "title": device.title(), "facts": facts, "pairs": pairs});
    Ok(Outcome::new(device.as_ref(), Form::from_flag(args.json), text, value))
}
