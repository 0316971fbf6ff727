//! Makes a prompt of a job's inputs: a conversation in the form of the model's chat template, or plain text.

use crate::nip90::params::Params;
use crate::nip90::{Input, JobRequest};
use candle_engine::backend::CompletionRequest;
use candle_engine::model::{ChatTemplate, Message, Role};
use candle_engine::thinking::Thinking;
use candle_engine::Error;

/// The error for requests with turns to a model without a template.
pub(super) const NO_TEMPLATE: &str = "`raw`: expected true: this model has no chat template";

/// The prompt of a job; `texts` are its inputs, in order. Without a template, or with `raw`, they are joined by line breaks, unless the
/// request sets another separator.
///
/// # Errors
/// Inputs that do not end with a turn of the user, and turns that the template rejects, in a line for the customer.
pub(super) fn prompt(
    request: &JobRequest,
    params: &Params,
    texts: Vec<String>,
    template: Option<&ChatTemplate>,
    raw: bool,
) -> Result<CompletionRequest, String> {
    let is_raw = params.raw.unwrap_or(raw || template.is_none());
    let (prompt, thinking) = match template {
        _ if is_raw => (texts.join("\n"), None),
        None => return Err(NO_TEMPLATE.to_string()),
        Some(template) => {
            let mut turns = turns(&request.inputs, texts, params.system.as_deref())?;
            let answers = turns.iter_mut().filter(|turn| turn.role == Role::Assistant);
            answers.for_each(|turn| turn.content = template.without_thoughts(&turn.content).1);
            let rendered = template.render(&turns).map_err(|err| {
                let problem = match (err, request.encryption) {
                    // A template may quote what it rejects.
                    (Error::ChatTemplate { problem, .. }, None) => format!(": {problem}"),
                    _ => String::new(),
                };
                format!("the model's chat template rejects the inputs{problem}; the parameter raw=true bypasses it")
            });
            let rendered = rendered?;
            let thinking = Thinking::of(template, &rendered);
            (rendered, thinking)
        }
    };
    Ok(CompletionRequest {
        prompt,
        from_template: !is_raw,
        thinking,
        ..CompletionRequest::default()
    })
}

/// The role of an input, by its marker.
fn role(marker: Option<&str>) -> Role {
    match marker.unwrap_or_default().to_ascii_lowercase().as_str() {
        "system" | "developer" => Role::System,
        "assistant" | "model" => Role::Assistant,
        _ => Role::User,
    }
}

/// The messages of a conversation. Neighbours of one role are joined: many templates reject two consecutive user messages.
fn turns(
    inputs: &[Input],
    texts: Vec<String>,
    system: Option<&str>,
) -> Result<Vec<Message>, String> {
    let mut turns: Vec<Message> = Vec::new();
    for (input, text) in inputs.iter().zip(texts) {
        let role = role(input.marker.as_deref());
        match turns.last_mut() {
            Some(last) if last.role == role => {
                last.content.push('\n');
                last.content.push_str(&text);
            }
            _ => turns.push(Message::new(role, text)),
        }
    }
    match turns.last() {
        Some(last) if last.role != Role::User => {
            return Err("the last input: expected one of the user, without a marker".to_string());
        }
        Some(last) if !last.content.trim().is_empty() => {}
        _ => return Err(Error::EmptyPrompt.one_line()),
    }
    let has_system = turns.iter().any(|turn| turn.role == Role::System);
    if let Some(system) = system.filter(|_| !has_system) {
        turns.insert(0, Message::new(Role::System, system));
    }
    Ok(turns)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints roles, and rejects a system message other than the first.
    const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late: ' + m.content) }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]";

    fn asked(inputs: &[(&str, &str)], params: Params, raw: bool) -> Result<(String, bool), String> {
        let input = |(marker, text): &(&str, &str)| Input {
            marker: (!marker.is_empty()).then(|| marker.to_string()),
            ..Input::text(*text)
        };
        let request = JobRequest {
            inputs: inputs.iter().map(input).collect(),
            ..JobRequest::default()
        };
        let texts = inputs.iter().map(|(_, text)| text.to_string()).collect();
        let template = ChatTemplate::new("test", TEMPLATE.to_string());
        let prompt = prompt(&request, &params, texts, Some(&template), raw)?;
        Ok((prompt.prompt, prompt.from_template))
    }

    #[test]
    fn inputs_are_turns_by_their_markers() {
        let chat = |inputs: &[(&str, &str)]| asked(inputs, Params::default(), false);
        let is = |text: &str| Ok((text.to_string(), true));
        assert_eq!(chat(&[("", "a")]), is("[user]a[assistant]"));
        let several = [
            ("System", "s"),
            ("", "a"),
            ("other", "b"),
            ("assistant", "c"),
            ("user", "d"),
        ];
        let expected = "[system]s[user]a\nb[assistant]c[user]d[assistant]";
        assert_eq!(chat(&several), is(expected));
        let last = chat(&[("", "a"), ("assistant", "b")]).unwrap_err();
        assert!(last.contains("the last input"), "{last}");
        let empty = chat(&[("", " \n")]).unwrap_err();
        assert_eq!(empty, Error::EmptyPrompt.one_line());
        let late = chat(&[("", "a"), ("system", "b"), ("", "c")]).unwrap_err();
        assert!(
            late.contains("late: b") && late.contains("raw=true"),
            "{late}"
        );
        assert!(!late.contains("test"), "no path of ours: {late}");
    }

    #[test]
    fn the_parameter_system_is_the_first_turn_unless_an_input_is() {
        let with = |inputs: &[(&str, &str)]| {
            let params = Params {
                system: Some("p".to_string()),
                ..Params::default()
            };
            asked(inputs, params, false).unwrap().0
        };
        assert_eq!(with(&[("", "a")]), "[system]p[user]a[assistant]");
        let marked = with(&[("system", "s"), ("", "a")]);
        assert_eq!(marked, "[system]s[user]a[assistant]");
    }

    #[test]
    fn the_request_says_whether_it_is_raw_or_else_the_operator() {
        let with = |raw, set| {
            let params = Params {
                raw,
                ..Params::default()
            };
            asked(&[("", "a"), ("", "b")], params, set).unwrap()
        };
        let raw = ("a\nb".to_string(), false);
        assert_eq!(with(Some(true), false), raw);
        assert_eq!(with(None, true), raw);
        assert_eq!(with(Some(false), true).0, "[user]a\nb[assistant]");
        let request = JobRequest::default();
        let params = Params {
            raw: Some(false),
            ..Params::default()
        };
        let refused = prompt(&request, &params, vec!["a".to_string()], None, false);
        assert_eq!(refused.unwrap_err(), NO_TEMPLATE);
    }
}
