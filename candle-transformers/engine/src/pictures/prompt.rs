//! Images in the text of a prompt.

use super::{Picture, PictureSupport, MAX_PICTURES};
use crate::error::brief;
use crate::model::{ModelFiles, TextTokenizer};
use crate::{CandleBackend, Error, Result};
use candle_transformers::pictures::{PictureSpec, Written};
use std::sync::Arc;

/// Who has put the placeholders of images in a prompt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    /// Whoever wrote it, or nobody: then images come first.
    Text,
    /// A chat template.
    Template,
}

impl From {
    fn template(yes: bool) -> Self {
        match yes {
            true => Self::Template,
            false => Self::Text,
        }
    }
}

impl ModelFiles {
    /// As [`prompt_tokens`](Self::prompt_tokens), with images before the text, or where it has the model's own placeholder.
    ///
    /// # Errors
    /// As [`prompt_tokens`](Self::prompt_tokens), and as [`CandleBackend::prompt_with_pictures`].
    pub fn prompt_tokens_with(&self, prompt: &str, pictures: &[Arc<Picture>]) -> Result<Vec<u32>> {
        let (support, name) = (&self.pictures, self.name.as_str());
        let prompt = written(support, name, &self.tokenizer, prompt, pictures, From::Text)?;
        self.prompt_tokens(&prompt)
    }

    /// Checks that the model takes images.
    ///
    /// # Errors
    /// [`Error::NoPictures`] if it does not.
    pub fn check_images(&self) -> Result<()> {
        self.pictures.spec(&self.name).map(drop)
    }
}

impl CandleBackend {
    /// The text of a prompt in which each image has what the model reads in its place, in the place of the token that a chat template writes
    /// for it. In a prompt that is not `from_template` and has no such token, images come first.
    ///
    /// # Errors
    /// [`Error::NoPictures`] of a model that takes none; more images than [`MAX_PICTURES`], or another number than the prompt has places.
    pub fn prompt_with_pictures(
        &self,
        prompt: &str,
        pictures: &[Arc<Picture>],
        from_template: bool,
    ) -> Result<String> {
        let (support, name) = self.picture_support();
        let from = From::template(from_template);
        written(support, name, self.tokenizer(), prompt, pictures, from)
    }

    /// Checks that the model takes images.
    ///
    /// # Errors
    /// [`Error::NoPictures`] if it does not.
    pub fn check_images(&self) -> Result<()> {
        self.picture_spec().map(drop)
    }

    /// Checks that tokens have as many places as the images have vectors.
    ///
    /// # Errors
    /// They do not, or the last token is one of an image; [`Error::NoPictures`].
    pub(crate) fn check_pictures(&self, tokens: &[u32], pictures: &[Arc<Picture>]) -> Result<()> {
        if pictures.is_empty() {
            return Ok(());
        }
        if self.ranks() > 1 {
            return Err(Error::Pictures(format!(
                "the model is split across {} devices; use one",
                self.ranks()
            )));
        }
        let (support, name) = self.picture_support();
        let spec = support.spec(name)?;
        let counts = pictures
            .iter()
            .map(|it| spec.tokens(it.width(), it.height()));
        let (wanted, token) = (counts.sum::<usize>(), spec.token());
        let found = tokens.iter().filter(|id| **id == token).count();
        match found == wanted && tokens.last() != Some(&token) {
            true => Ok(()),
            false => Err(Error::Pictures(format!(
                "the prompt has {found} tokens of images, but {} images have {wanted}; the tokenizer may not know token {token}",
                pictures.len()
            ))),
        }
    }
}

/// Refuses an image whose shape the encoder does not take.
pub(crate) fn check_shape(spec: &PictureSpec, picture: &Picture) -> Result<()> {
    let checked = spec.check(picture.width(), picture.height());
    checked.map_err(|err| Error::Pictures(brief(&err)))
}

fn written(
    support: &PictureSupport,
    model: &str,
    tokenizer: &TextTokenizer,
    prompt: &str,
    pictures: &[Arc<Picture>],
    from: From,
) -> Result<String> {
    if pictures.is_empty() {
        return Ok(prompt.to_string());
    }
    let spec = support.spec(model)?;
    if pictures.len() > MAX_PICTURES {
        return Err(Error::Pictures(format!(
            "{} images; the maximum is {MAX_PICTURES}",
            pictures.len()
        )));
    }
    let text = |id: u32| {
        tokenizer.token(id).ok_or_else(|| {
            Error::Tokenizer(format!("it has no token {id}, which stands for images"))
        })
    };
    let place = text(spec.placeholder())?;
    for picture in pictures {
        check_shape(spec, picture)?;
    }
    let mut parts: Vec<&str> = prompt.split(&place).collect();
    let places = parts.len() - 1;
    let alone = places == 0 && from == From::Text;
    if alone {
        parts = vec![""; pictures.len()];
        parts.push(prompt);
    } else if places != pictures.len() {
        let by = match from {
            From::Text => "the prompt",
            From::Template => "the chat template",
        };
        return Err(Error::Pictures(format!(
            "{} images, but {by} has {places} places for them ({place})",
            pictures.len()
        )));
    }
    let mut all = parts[0].to_string();
    for (picture, after) in pictures.iter().zip(&parts[1..]) {
        let (width, height) = (picture.width(), picture.height());
        let parts = match alone {
            true => spec.written_alone(width, height),
            false => spec.written(width, height),
        };
        for part in parts {
            match part {
                Written::Text(part) => all.push_str(&part),
                Written::Token(id, count) => all.push_str(&text(id)?.repeat(count)),
            }
        }
        all.push_str(after);
    }
    Ok(all)
}

/// How many of the first `same` tokens, which two prompts have in common, are of the same images too: up to the first image that is another
/// one, or is not whole. `count` says how many tokens an image has.
pub(crate) fn common(
    tokens: &[u32],
    same: usize,
    token: u32,
    count: impl Fn(&Picture) -> usize,
    both: [&[Arc<Picture>]; 2],
) -> usize {
    let places = tokens[..same].iter().enumerate();
    let mut places = places.filter(|(_, id)| **id == token).map(|(at, _)| at);
    let [mut old, mut new] = both.map(|pictures| pictures.iter());
    while let Some(first) = places.next() {
        let is_same = |(a, b): (&Arc<Picture>, &Arc<Picture>)| (a == b).then(|| count(a));
        let Some(tokens) = old.next().zip(new.next()).and_then(is_same) else {
            return first;
        };
        let whole = (1..tokens).all(|_| places.next().is_some());
        if !whole {
            return first;
        }
    }
    same
}

#[cfg(test)]
mod tests {
    use super::{common, Picture};
    use std::sync::Arc;

    #[test]
    fn what_is_kept_of_prompts_with_images() {
        let [a, b] = [1u8, 2].map(|byte| Arc::new(Picture::new(1, 1, vec![byte; 3]).unwrap()));
        // 9 stands for images of two tokens.
        let tokens = [1, 9, 9, 2, 9, 9, 3];
        let kept = |same: usize, old: &[&Arc<Picture>], new: &[&Arc<Picture>]| {
            let [old, new] = [old, new].map(|all| all.iter().map(|it| (*it).clone()).collect());
            let [old, new]: [Vec<Arc<Picture>>; 2] = [old, new];
            common(&tokens, same, 9, |_| 2, [&old, &new])
        };
        assert_eq!(kept(7, &[&a, &b], &[&a, &b]), 7);
        assert_eq!(kept(7, &[&a, &b], &[&a, &a]), 4);
        assert_eq!(kept(7, &[&a, &b], &[&b, &b]), 1);
        assert_eq!(kept(7, &[&a, &b], &[&a]), 4);
        // Half an image is none.
        assert_eq!(kept(5, &[&a, &b], &[&a, &b]), 4);
        assert_eq!(kept(1, &[], &[&a]), 1);
    }
}
