//! Trouble that lasts, said once in a while instead of at every look.

use std::time::{Duration, Instant};

use crate::CaError;

/// The same trouble is news again after this long.
const AGAIN: Duration = Duration::from_secs(600);

/// What was said last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble {
    said: Option<(String, Instant)>,
}

impl Trouble {
    /// Whether to say it now.
    pub(crate) fn is_news(&mut self, error: &CaError) -> bool {
        self.is_news_at(error, Instant::now())
    }

    fn is_news_at(&mut self, error: &CaError, now: Instant) -> bool {
        let text = error.to_string();
        if let Some((said, at)) = &self.said
            && *said == text
            && now.saturating_duration_since(*at) < AGAIN
        {
            return false;
        }
        self.said = Some((text, now));
        true
    }

    /// It is over; whether there was any.
    pub(crate) fn over(&mut self) -> bool {
        self.said.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_in_a_while() {
        let (mut trouble, now) = (Trouble::default(), Instant::now());
        let (gone, damaged) = (CaError::authority("gone"), CaError::authority("damaged"));
        assert!(!trouble.over());
        assert!(trouble.is_news_at(&gone, now));
        assert!(!trouble.is_news_at(&gone, now + AGAIN / 2));
        assert!(trouble.is_news_at(&damaged, now + AGAIN / 2));
        assert!(trouble.is_news_at(&gone, now + AGAIN / 2));
        assert!(trouble.is_news_at(&gone, now + AGAIN * 2));
        assert!(trouble.over());
        assert!(trouble.is_news_at(&gone, now + AGAIN * 2));
    }
}
