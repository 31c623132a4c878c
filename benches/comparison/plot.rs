//! The plots, as SVG on white, so that they are readable on any page. Each shows medians.

use std::path::Path;

use plotters::prelude::*;

use super::results::Results;
use super::spec::{Peer, Spec, USUAL_PAYLOAD, Workload};

const SIZE: (u32, u32) = (900, 420);

fn colour(peer: Peer) -> RGBColor {
    match peer {
        Peer::Walpost => RGBColor(0, 114, 178),
        Peer::PgRecvlogical => RGBColor(120, 120, 120),
        Peer::Polling => RGBColor(0, 158, 115),
        Peer::DebeziumDefault => RGBColor(230, 159, 0),
        Peer::DebeziumTuned => RGBColor(213, 94, 0),
        Peer::DebeziumBest => RGBColor(204, 121, 167),
        Peer::None => RGBColor(0, 0, 0),
    }
}

/// Groups of bars: the name of each group, and a bar for each peer.
type Groups = Vec<(String, Vec<(String, RGBColor, f64)>)>;

/// Draws what there are results for, and returns file and title of each.
pub fn all(results: &Results, folder: &Path) -> Result<Vec<(&'static str, &'static str)>, String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let drain = |spec: &Spec| {
        spec.workload == Workload::Drain && spec.payload == USUAL_PAYLOAD && spec.topics == 1 && spec.keys == 10_000
    };
    let compared = |spec: &Spec| drain(spec) && [1, 100, 1000].contains(&spec.per_commit);
    let commit = |spec: &Spec| (spec.per_commit, format!("{} rows a commit", spec.per_commit));
    let steady = |spec: &Spec| spec.workload == Workload::Steady && !spec.old_snapshot;
    let rate = |spec: &Spec| (spec.rate, format!("{} rows/s", spec.rate));
    let sizes = |spec: &Spec| drain(spec) && spec.peer == Peer::Walpost && spec.per_commit == 1000;
    let rows = |spec: &Spec| (spec.rows, format!("{} rows", spec.rows));
    let plots: [(&str, &str, Groups, bool); 5] = [
        ("drain.svg", "Drain, rows/s (more is better)", groups(results, &compared, &commit, "rate"), false),
        ("p50.svg", "Latency p50, ms, logarithmic (less is better)", groups(results, &steady, &rate, "p50_ms"), true),
        ("p99.svg", "Latency p99, ms, logarithmic (less is better)", groups(results, &steady, &rate, "p99_ms"), true),
        (
            "memory.svg",
            "Peak memory in a drain, MB, logarithmic (less is better)",
            groups(results, &compared, &commit, "peak_rss_mb"),
            true,
        ),
        (
            "backlog.svg",
            "Time per row by the size of the backlog, us (walpost; level is good)",
            groups(results, &sizes, &rows, "us_per_row"),
            false,
        ),
    ];
    let mut drawn = Vec::new();
    for (file, title, groups, logarithmic) in plots {
        if !groups.is_empty() {
            bars(&folder.join(file), title, &groups, logarithmic).map_err(|error| format!("{file}: {error}"))?;
            drawn.push((file, title));
        }
    }
    Ok(drawn)
}

/// Of several measurements of a peer in a group the largest counts.
fn groups(
    results: &Results,
    wanted: &dyn Fn(&Spec) -> bool,
    group: &dyn Fn(&Spec) -> (u64, String),
    figure: &str,
) -> Groups {
    let mut specs: Vec<&Spec> = results.all.iter().map(|outcome| &outcome.spec).filter(|spec| wanted(spec)).collect();
    specs.sort_by_key(|spec| (group(spec).0, spec.peer, std::cmp::Reverse(spec.rows)));
    let mut found: Groups = Vec::new();
    for spec in specs {
        let Some(spread) = results.spread(spec, figure) else { continue };
        let (_, title) = group(spec);
        if found.last().is_none_or(|(last, _)| *last != title) {
            found.push((title, Vec::new()));
        }
        let bars = &mut found.last_mut().expect("pushed above").1;
        if bars.iter().all(|(peer, _, _)| *peer != spec.peer.name()) {
            bars.push((spec.peer.name(), colour(spec.peer), spread.median));
        }
    }
    found
}

fn bars(path: &Path, title: &str, groups: &Groups, logarithmic: bool) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let scale = |value: f64| if logarithmic { value.max(1.0).log10() } else { value };
    let bars_of = |group: &(String, Vec<(String, RGBColor, f64)>)| group.1.iter().map(|bar| bar.2).fold(0.0, f64::max);
    let most = groups.iter().map(bars_of).fold(1.0, f64::max);
    let top = if logarithmic { most.log10().ceil().max(1.0) } else { most * 1.12 };
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18).into_font().color(&BLACK))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..groups.len() as f64, 0.0..top)?;
    let label = |value: &f64| match logarithmic {
        true => format!("{:.0}", 10.0_f64.powf(*value)),
        false => format!("{value:.0}"),
    };
    let lines = if logarithmic { top as usize + 1 } else { 6 };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_labels(lines)
        .max_light_lines(0)
        .y_label_formatter(&label)
        .draw()?;
    for (place, (name, bars)) in groups.iter().enumerate() {
        let width = 0.8 / bars.len() as f64;
        for (index, (_, colour, value)) in bars.iter().enumerate() {
            let left = place as f64 + 0.1 + width * index as f64;
            let right = left + width * 0.92;
            chart.draw_series([Rectangle::new([(left, 0.0), (right, scale(*value))], colour.filled())])?;
            let text = if *value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") };
            let (x, y) = chart.backend_coord(&((left + right) / 2.0, scale(*value)));
            let style = ("sans-serif", 12).into_font().color(&BLACK);
            area.draw_text(&text, &centred(style), (x, y - 14))?;
        }
        let (x, y) = chart.backend_coord(&(place as f64 + 0.5, 0.0));
        area.draw_text(name, &centred(("sans-serif", 14).into_font().color(&BLACK)), (x, y + 8))?;
    }
    legend(&area, groups)
}

fn centred(style: TextStyle<'_>) -> TextStyle<'_> {
    style.pos(plotters::style::text_anchor::Pos::new(
        plotters::style::text_anchor::HPos::Center,
        plotters::style::text_anchor::VPos::Top,
    ))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// One line under the title, in the order of the first appearance.
fn legend(area: &Area<'_>, groups: &Groups) -> Result<(), Box<dyn std::error::Error>> {
    let mut peers: Vec<(&String, RGBColor)> = Vec::new();
    for (name, colour, _) in groups.iter().flat_map(|(_, bars)| bars) {
        if peers.iter().all(|(known, _)| *known != name) {
            peers.push((name, *colour));
        }
    }
    let mut x = 90;
    for (name, colour) in peers {
        area.draw(&Rectangle::new([(x, 40), (x + 12, 52)], colour.filled()))?;
        area.draw_text(name, &("sans-serif", 13).into_font().color(&BLACK), (x + 17, 39))?;
        x += 40 + 8 * name.len() as i32;
    }
    area.present()?;
    Ok(())
}
