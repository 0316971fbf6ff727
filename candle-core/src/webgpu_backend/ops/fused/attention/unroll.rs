//! Loops of WGSL written out, so that what is in arrays can stay in registers, for which all places in them have to be constants.

/// `text` with its loops `for (var i = 0u; i < BOUND; i++) {` written out where `bounds` has the bound's name, with the number of rounds:
/// `i` becomes a constant of each round. Loops inside of others too; loops of any other form stay.
pub(super) fn unrolled(text: &str, bounds: &[(&str, u32)]) -> String {
    const FOR: &str = "for (var ";
    let mut done = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(FOR) {
        let (before, from) = rest.split_at(start);
        done.push_str(before);
        match counted(from, bounds) {
            Some((name, rounds, body, after)) => {
                let body = unrolled(body, bounds);
                for round in 0..rounds {
                    done.push_str(&format!("{{ const {name} = {round}u;{body}}}\n"));
                }
                rest = after;
            }
            None => {
                done.push_str(FOR);
                rest = &from[FOR.len()..];
            }
        }
    }
    done + rest
}

/// The variable, the rounds and the body of the loop that `text` starts with, and what comes after it; `None` if it is not to be written out.
fn counted<'a>(text: &'a str, bounds: &[(&str, u32)]) -> Option<(&'a str, u32, &'a str, &'a str)> {
    let head_end = text.find('{')?;
    let (head, body) = (&text[..head_end], &text[head_end + 1..]);
    let name = head.strip_prefix("for (var ")?.split(' ').next()?;
    let is_of = |bound: &str| head == format!("for (var {name} = 0u; {name} < {bound}; {name}++) ");
    let (_, rounds) = bounds.iter().find(|(bound, _)| is_of(bound))?;
    let mut depth = 1;
    let end = body.char_indices().find(|(_, c)| {
        depth += match c {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        depth == 0
    })?;
    Some((name, *rounds, &body[..end.0], &body[end.0 + 1..]))
}

#[cfg(test)]
mod tests {
    use super::unrolled;

    #[test]
    fn only_counted_loops_are_written_out() {
        let text = "for (var i = 0u; i < A; i++) { x[i] = 1; for (var j = 0u; j < B; j++) { if (j > i) { y(); } } }\n\
                    for (var i = 1u; i < A; i++) { z(); }";
        let inner = |j| format!("{{ const j = {j}u; if (j > i) {{ y(); }} }}\n");
        let round = |i| format!("{{ const i = {i}u; x[i] = 1; {}{} }}\n", inner(0), inner(1));
        assert_eq!(
            unrolled(text, &[("A", 3), ("B", 2)]),
            format!(
                "{}{}{}\nfor (var i = 1u; i < A; i++) {{ z(); }}",
                round(0),
                round(1),
                round(2)
            )
        );
        assert_eq!(unrolled(text, &[]), text);
    }
}
