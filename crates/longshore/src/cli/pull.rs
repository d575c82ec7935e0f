//! A pull as people watch it: a bar per layer in a terminal, lines elsewhere.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use api_admin::v1::{LayerProgress, LayerStage, PullImageRequest, PullImageResponse};
use tokio::time::Instant;

use super::{
    client::{Client, Told},
    size::Size,
};

const BAR: usize = 30;
/// The rate is that of this time.
const WINDOW: Duration = Duration::from_secs(3);

/// Pulls; returns the id. What happens is shown on standard error.
pub(super) async fn pull(client: &mut Client, request: PullImageRequest) -> anyhow::Result<String> {
    let what = format!("pull {}", request.image);
    let mut answers = client.admin.pull_image(request).await.told(&what)?;
    let mut show = Show::new(io::stderr().is_terminal());
    let mut err = io::stderr();
    loop {
        let answer = answers.message().await.map(tonic::Response::new).told(&what)?;
        let Some(PullImageResponse { layers, id }) = answer else {
            anyhow::bail!("{what}: the daemon ended the pull without an answer");
        };
        err.write_all(show.next(&layers, Instant::now()).as_bytes())?;
        if !id.is_empty() {
            return Ok(id);
        }
    }
}

/// What is shown, from what was shown before.
#[derive(Debug)]
struct Show {
    bars: bool,
    /// Lines to go up to write over them.
    drawn: usize,
    stages: Vec<LayerStage>,
    speed: Speed,
}

impl Show {
    fn new(bars: bool) -> Self {
        Self { bars, drawn: 0, stages: Vec::new(), speed: Speed::default() }
    }

    fn next(&mut self, layers: &[LayerProgress], now: Instant) -> String {
        self.speed.note(now, layers.iter().map(|layer| layer.here).sum());
        if self.bars { self.redraw(layers) } else { self.tell(layers) }
    }

    fn redraw(&mut self, layers: &[LayerProgress]) -> String {
        let mut text = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
        for layer in layers {
            let _ = writeln!(text, "\x1b[2K{}", bar(layer));
        }
        if !layers.is_empty() {
            let _ = writeln!(text, "\x1b[2K{}", self.summary(layers));
            self.drawn = layers.len() + 1;
        }
        text
    }

    /// A line for each layer that came to another stage.
    fn tell(&mut self, layers: &[LayerProgress]) -> String {
        self.stages.resize(layers.len(), LayerStage::Waiting);
        let mut text = String::new();
        for (layer, before) in layers.iter().zip(&mut self.stages) {
            if layer.stage() != *before {
                *before = layer.stage();
                let size = Size(layer.size);
                let _ = writeln!(text, "{} {size} {}", short(layer), word(layer.stage()));
            }
        }
        text
    }

    fn summary(&self, layers: &[LayerProgress]) -> String {
        let (here, size) = layers
            .iter()
            .fold((0, 0), |(here, size), layer| (here + layer.here, size + layer.size));
        let mut text = format!("{} of {}", Size(here), Size(size));
        if let Some(rate) = self.speed.per_second().filter(|_| here < size) {
            let left = Duration::from_secs((size - here).div_ceil(rate.max(1)));
            let _ = write!(text, ", {}/s, {} s left", Size(rate), left.as_secs());
        }
        text
    }
}

fn bar(layer: &LayerProgress) -> String {
    let full = match layer.size {
        0 => BAR,
        size => usize::try_from(layer.here * BAR as u64 / size).unwrap_or(BAR).min(BAR),
    };
    let (done, open) = ("#".repeat(full), "-".repeat(BAR - full));
    format!("{} [{done}{open}] {:>9} {}", short(layer), Size(layer.size), word(layer.stage()))
}

fn short(layer: &LayerProgress) -> &str {
    let hex = layer.digest.split_once(':').map_or(&*layer.digest, |(_, hex)| hex);
    hex.get(..12).unwrap_or(hex)
}

fn word(stage: LayerStage) -> &'static str {
    match stage {
        LayerStage::Waiting => "waiting",
        LayerStage::Pulling => "pulling",
        LayerStage::Unpacking => "unpacking",
        LayerStage::Done => "done",
    }
}

/// Bytes per second of the last while.
#[derive(Debug, Default)]
struct Speed(Vec<(Instant, u64)>);

impl Speed {
    fn note(&mut self, now: Instant, here: u64) {
        self.0.retain(|(at, _)| now - *at <= WINDOW);
        self.0.push((now, here));
    }

    fn per_second(&self) -> Option<u64> {
        let ((from, first), (to, last)) = (self.0.first()?, self.0.last()?);
        let millis = u64::try_from((*to - *from).as_millis()).ok().filter(|millis| *millis > 0)?;
        let rate = last.saturating_sub(*first) * 1000 / millis;
        (rate > 0).then_some(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(here: u64, stage: LayerStage) -> LayerProgress {
        let digest = format!("sha256:{}", "ab".repeat(32));
        LayerProgress { digest, size: 30_000_000, here, stage: stage.into() }
    }

    #[test]
    fn a_terminal_gets_bars_that_grow_in_place() {
        let (mut show, now) = (Show::new(true), Instant::now());
        assert_eq!(show.next(&[], now), "", "nothing is known yet");
        let text = show.next(&[layer(10_000_000, LayerStage::Pulling)], now);
        assert!(text.contains("abababababab [##########--------------------]"), "{text}");
        let later = now + Duration::from_secs(1);
        let text = show.next(&[layer(20_000_000, LayerStage::Pulling)], later);
        assert!(text.starts_with("\x1b[2A"), "{text}");
        assert!(text.contains("20.0 MB of 30.0 MB, 20.0 MB/s, 1 s left"), "{text}");
        let text = show.next(&[layer(30_000_000, LayerStage::Done)], later);
        assert!(text.contains("done") && !text.contains("left"), "{text}");
    }

    #[test]
    fn elsewhere_each_stage_is_a_line() {
        let (mut show, now) = (Show::new(false), Instant::now());
        assert_eq!(show.next(&[layer(0, LayerStage::Waiting)], now), "");
        let pulling = [layer(1, LayerStage::Pulling)];
        assert_eq!(show.next(&pulling, now), "abababababab 30.0 MB pulling\n");
        assert_eq!(show.next(&pulling, now), "");
        assert_eq!(show.next(&[layer(1, LayerStage::Done)], now), "abababababab 30.0 MB done\n");
    }
}
