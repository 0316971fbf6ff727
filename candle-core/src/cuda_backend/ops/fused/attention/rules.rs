//! The mask rules and score terms of attention, as the bits of RULES in `kernels/attention.cu`.

use crate::fused::attention;

/// The bias as its C++ type.
pub(super) type Rules = attention::Rules<&'static str>;

pub(super) fn bits(rules: Rules) -> u32 {
    let Rules {
        softcap,
        causal,
        left,
        right,
        starts,
        lens,
        page: _,
        slopes,
        sinks,
        bias,
        blind,
    } = rules;
    let from_the_lowest = [
        softcap,
        causal,
        left,
        right,
        starts,
        lens,
        slopes,
        sinks,
        blind,
        bias.is_some(),
    ];
    let bits = from_the_lowest.into_iter().enumerate();
    bits.fold(0, |all, (place, on)| all | u32::from(on) << place)
}
