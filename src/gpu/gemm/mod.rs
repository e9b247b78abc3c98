//! Products: the problem, the ways to compute it, plans, and the choice among them.

pub(crate) mod args;
pub(crate) mod baseline;
pub(crate) mod bf16;
pub(crate) mod cache;
pub(crate) mod call;
pub(crate) mod desc;
pub(crate) mod finish;
pub(crate) mod formulation;
pub(crate) mod judge;
pub(crate) mod lt_step;
pub(crate) mod measured;
mod measured_sm90;
pub(crate) mod outline;
pub(crate) mod plan;
pub(crate) mod prepare;
pub(crate) mod quantize_a;
pub(crate) mod record;
pub(crate) mod rescale;
pub(crate) mod rules;
pub(crate) mod sm90_rules;
pub(crate) mod sm90_step;
pub(crate) mod small_m_rules;
pub(crate) mod small_m_step;
pub(crate) mod steps;
pub(crate) mod tune;
