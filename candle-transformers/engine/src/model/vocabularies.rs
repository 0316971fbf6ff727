//! Whether two models mean the same tokens by the same ids, so that one can propose tokens to the other.

use super::TextTokenizer;

/// One of two models.
pub(crate) struct Vocabulary<'a> {
    pub(crate) name: &'a str,
    pub(crate) tokenizer: &'a TextTokenizer,
    /// Rows of the embedding; the last ones may belong to no token.
    pub(crate) rows: usize,
}

/// At most one of this number of tokens may be in one vocabulary alone: added tokens and rows that only round a size up are few.
const ONE_MISSING_OF: usize = 10;

/// Says in one line why tokens of `draft` cannot be proposed to `model`: a token, special ones included, that is another one there, or too few
/// in common.
pub(crate) fn difference(draft: &Vocabulary, model: &Vocabulary) -> Option<String> {
    let (mut common, mut different, mut first) = (0, 0, None);
    let mut tokens = [0; 2];
    for id in 0..draft.rows.max(model.rows) as u32 {
        let of = |it: &Vocabulary| {
            if (id as usize) < it.rows {
                it.tokenizer.token(id)
            } else {
                None
            }
        };
        let both = [of(draft), of(model)];
        for (count, token) in tokens.iter_mut().zip(&both) {
            *count += usize::from(token.is_some());
        }
        match both {
            [Some(a), Some(b)] if a == b => common += 1,
            [Some(a), Some(b)] => {
                different += 1;
                first.get_or_insert((id, a, b));
            }
            _ => {}
        }
    }
    let names = format!("{} has {} tokens, {}", draft.name, tokens[0], model.name);
    let sizes = format!("{names} {}", tokens[1]);
    if let Some((id, a, b)) = first {
        return Some(format!(
            "{sizes}, and {different} ids stand for different tokens, such as {id} for {a:?} and {b:?}"
        ));
    }
    let most = tokens[0].max(tokens[1]);
    let few = common * ONE_MISSING_OF < most * (ONE_MISSING_OF - 1);
    few.then(|| format!("{sizes}, and only {common} are in both"))
}
