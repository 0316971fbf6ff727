//! Unrolling of WGSL loops, with a variable for each element of an array, so that they stay in registers: drivers put arrays that are
//! indexed in loops into memory, even in loops with constant bounds.

use super::kernel::{Params, Shader};

impl Shader {
    /// [`Shader::body`], with constants named by `counts`, in which the loops to one of them, `for (var i = 0u; i < COUNT; i++) {`, are
    /// unrolled, nested loops too: `i` becomes a number. Loops of any other form are unchanged. Array variables of a function, `var name:
    /// array<T, LEN>;`, become the variables `name_0`, `name_1` and so on if `LEN` consists of sums and products of counts and numbers.
    ///
    /// Panics if an index of such an array is then not constant: the text is a part of this crate.
    pub(super) fn unrolled<P: Params>(self, body: &str, counts: &[(&str, u32)]) -> Self {
        let with = |shader: Self, (name, count): &(&str, u32)| shader.constant(name, *count);
        let shader = counts.iter().fold(self, with);
        shader.body::<P>(&unrolled(body, counts))
    }
}

/// [`Shader::unrolled`] of a part of a shader.
pub(super) fn unrolled(text: &str, counts: &[(&str, u32)]) -> String {
    let mut text = written_out(text, counts);
    while let Some(array) = array_in(&text, counts) {
        text = as_variables(&text, &array, counts);
    }
    text
}

/// The name of the first array of `counts` that is a variable of a function.
fn array_in(text: &str, counts: &[(&str, u32)]) -> Option<String> {
    text.match_indices("var ").find_map(|(at, word)| {
        let declared = &text[at + word.len()..];
        let name = &declared[..declared.find(|c| !in_name(c))?];
        declaration(&declared[name.len()..], counts).map(|_| name.into())
    })
}

/// For the text after an array's name in its declaration: the type of its elements, their number, and the rest.
fn declaration<'a>(text: &'a str, counts: &[(&str, u32)]) -> Option<(&'a str, u32, &'a str)> {
    let (ty, after) = text.strip_prefix(": array<")?.split_once(';')?;
    let (ty, len) = ty.strip_suffix('>')?.rsplit_once(", ")?;
    Some((ty, sum(len, counts)?, after))
}

fn written_out(text: &str, counts: &[(&str, u32)]) -> String {
    const FOR: &str = "for (var ";
    let mut done = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(FOR) {
        let (before, from) = rest.split_at(start);
        done.push_str(before);
        match counted(from, counts) {
            Some((name, rounds, body, after)) => {
                for round in 0..rounds {
                    let body = replaced(body, name, &format!("{round}u"));
                    done.push_str(&format!("{{{}}}\n", written_out(&body, counts)));
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

/// For a `text` that starts with a loop: the variable, the number of iterations, the body, and the rest; `None` if it is not to be
/// unrolled.
fn counted<'a>(text: &'a str, counts: &[(&str, u32)]) -> Option<(&'a str, u32, &'a str, &'a str)> {
    let head_end = text.find('{')?;
    let (head, body) = (&text[..head_end], &text[head_end + 1..]);
    let name = head.strip_prefix("for (var ")?.split(' ').next()?;
    let is_of = |bound: &str| head == format!("for (var {name} = 0u; {name} < {bound}; {name}++) ");
    let (_, rounds) = counts.iter().find(|(bound, _)| is_of(bound))?;
    let end = closing(body, '{', '}')?;
    Some((name, *rounds, &body[..end], &body[end + 1..]))
}

/// The position of the bracket that closes one before `text`.
fn closing(text: &str, open: char, close: char) -> Option<usize> {
    let mut depth = 1;
    let end = text.char_indices().find(|(_, c)| {
        depth += i32::from(*c == open) - i32::from(*c == close);
        depth == 0
    })?;
    Some(end.0)
}

fn in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The position of `name` in `text` as a whole word.
fn find_word(text: &str, name: &str) -> Option<usize> {
    let whole = |at: &usize| {
        !text[..*at].ends_with(in_name) && !text[at + name.len()..].starts_with(in_name)
    };
    text.match_indices(name).map(|(at, _)| at).find(whole)
}

fn replaced(text: &str, name: &str, by: &str) -> String {
    let mut done = String::new();
    let mut rest = text;
    while let Some(at) = find_word(rest, name) {
        done.push_str(&rest[..at]);
        done.push_str(by);
        rest = &rest[at + name.len()..];
        // The rest is not part of a name, which `find_word` could no longer see.
    }
    done + rest
}

fn as_variables(text: &str, array: &str, counts: &[(&str, u32)]) -> String {
    let mut done = String::new();
    let mut rest = text;
    while let Some(at) = find_word(rest, array) {
        let after = &rest[at + array.len()..];
        done.push_str(&rest[..at]);
        rest = after;
        if let Some(place) = after.strip_prefix('[') {
            let number = closing(place, '[', ']').and_then(|end| {
                rest = &place[end + 1..];
                sum(&place[..end], counts)
            });
            let number = number.unwrap_or_else(|| panic!("an index of {array} is not constant"));
            done.push_str(&format!("{array}_{number}"));
            continue;
        }
        match declaration(after, counts) {
            // After the word `var`, which the first variable uses.
            Some((ty, len, after)) => {
                let variables: Vec<_> = (0..len).map(|i| format!("{array}_{i}: {ty};")).collect();
                done.push_str(&variables.join(" var "));
                rest = after;
            }
            None => done.push_str(array),
        }
    }
    done + rest
}

/// Evaluates a sum of products of numbers, counts and sums in brackets; `None` for anything else.
fn sum(text: &str, counts: &[(&str, u32)]) -> Option<u32> {
    let terms = split(text, '+').into_iter().map(|term| {
        let factors = split(term, '*').into_iter().map(|factor| {
            let factor = factor.trim();
            if let Some(inner) = factor.strip_prefix('(') {
                return sum(inner.strip_suffix(')')?, counts);
            }
            let named = counts.iter().find(|(name, _)| *name == factor);
            match named {
                Some((_, value)) => Some(*value),
                None => factor.trim_end_matches('u').parse().ok(),
            }
        });
        factors.product::<Option<u32>>()
    });
    terms.sum()
}

/// The parts of `text` between `mark`s that are not in brackets.
fn split(text: &str, mark: char) -> Vec<&str> {
    let (mut parts, mut first, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if c == mark && depth == 0 {
            parts.push(&text[first..at]);
            first = at + 1;
        }
    }
    parts.push(&text[first..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::unrolled;

    #[test]
    fn only_counted_loops_are_written_out() {
        let text = "for (var i = 0u; i < A; i++) { x[i] = 1; for (var j = 0u; j < B; j++) { if (j > i) { my_i(j); } } }\n\
                    for (var i = 1u; i < A; i++) { z(i); }";
        let inner = |i, j| format!("{{ if ({j}u > {i}u) {{ my_i({j}u); }} }}\n");
        let round = |i| format!("{{ x[{i}u] = 1; {}{} }}\n", inner(i, 0), inner(i, 1));
        assert_eq!(
            unrolled(text, &[("A", 3), ("B", 2)]),
            format!(
                "{}{}{}\nfor (var i = 1u; i < A; i++) {{ z(i); }}",
                round(0),
                round(1),
                round(2)
            )
        );
        assert_eq!(unrolled(text, &[]), text);
    }

    #[test]
    fn arrays_become_variables() {
        let text = "var x: array<vec2<f32>, A * B>; var y: array<f32, C>;\nfor (var i = 0u; i < A; i++) { x[(i + 1u) * B + 0u] = my_x[i] + x[i].x; }";
        assert_eq!(
            unrolled(text, &[("A", 2), ("B", 2)]),
            "var x_0: vec2<f32>; var x_1: vec2<f32>; var x_2: vec2<f32>; var x_3: vec2<f32>; var y: array<f32, C>;\n\
             { x_2 = my_x[0u] + x_0.x; }\n{ x_4 = my_x[1u] + x_1.x; }\n"
        );
    }
}
