//! Charts as SVG, two beside each other, with logarithmic axes.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::output::number;

/// One chart: y over m, a line for each name.
pub struct Chart {
    pub title: String,
    pub series: Vec<(String, Vec<(f64, f64)>)>,
}

/// Width and height of one chart in pixels, and the width of the names at its right.
const SIZE: (u32, u32) = (760, 440);
const NAMES: u32 = 200;
const COLUMNS: usize = 2;
/// Colours that people who see few colours tell apart too (Okabe and Ito's, without yellow, which is faint on white).
const COLORS: [RGBColor; 7] = [
    RGBColor(90, 90, 90),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
/// How a line is broken, length and gap in pixels: another way for each round of the colours.
const DASHES: [Option<(i32, i32)>; 3] = [None, Some((9, 5)), Some((3, 4))];
/// Nearest that two labels of the x axis may come, as a part of its length.
const LABEL_GAP: f64 = 0.05;

/// The SVG text. Fonts are named, not embedded: no font needs to be installed.
pub fn svg(charts: &[Chart]) -> Result<String, Box<dyn Error>> {
    let rows = charts.len().div_ceil(COLUMNS).max(1);
    let mut text = String::new();
    {
        let root =
            SVGBackend::with_string(&mut text, (SIZE.0 * COLUMNS as u32, SIZE.1 * rows as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        for (area, chart) in root.split_evenly((rows, COLUMNS)).iter().zip(charts) {
            draw(area, chart)?;
        }
        root.present()?;
    }
    Ok(text)
}

fn draw(area: &DrawingArea<SVGBackend<'_>, Shift>, chart: &Chart) -> Result<(), Box<dyn Error>> {
    let (x, y) = (range(chart, |p| p.0), range(chart, |p| p.1));
    let (plot, names) = area.split_horizontally(SIZE.0 - NAMES);
    let mut axes = ChartBuilder::on(&plot)
        .caption(&chart.title, ("sans-serif", 17))
        .margin(14)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(
            (x.0..x.1).log_scale().with_key_points(ticks(chart, x)),
            (y.0..y.1).log_scale().with_key_points(decades(y.0, y.1)),
        )?;
    axes.configure_mesh()
        .x_desc("m")
        .x_label_formatter(&|m| number(*m))
        .y_label_formatter(&|value| value.to_string())
        .light_line_style(WHITE.mix(0.0))
        .label_style(("sans-serif", 12))
        .draw()?;
    for (i, (name, points)) in chart.series.iter().enumerate() {
        let (color, dash) = look(i);
        let style = color.stroke_width(2);
        let name_at = 40 + 18 * i as i32;
        let sample = [(0, name_at), (30, name_at)];
        match dash {
            None => {
                axes.draw_series(LineSeries::new(points.iter().copied(), style))?;
                names.draw(&PathElement::new(sample, style))?;
            }
            Some((length, gap)) => {
                axes.draw_series(DashedLineSeries::new(points.iter().copied(), length, gap, style))?;
                names.draw(&plotters::element::DashedPathElement::new(sample, length, gap, style))?;
            }
        }
        axes.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
        names.draw(&Text::new(name.clone(), (38, name_at - 7), ("sans-serif", 13)))?;
    }
    Ok(())
}

/// Colour and dashes of a series: no two of twenty-one are alike.
fn look(series: usize) -> (RGBColor, Option<(i32, i32)>) {
    (COLORS[series % COLORS.len()], DASHES[series / COLORS.len() % DASHES.len()])
}

/// The places on the x axis that are marked: those that were measured, but for one too near to the one before it.
fn ticks(chart: &Chart, (low, high): (f64, f64)) -> Vec<f64> {
    let mut measured: Vec<f64> = chart.series.iter().flat_map(|(_, points)| points).map(|p| p.0).collect();
    measured.retain(|x| x.is_finite() && *x > 0.0);
    measured.sort_by(f64::total_cmp);
    let place = |x: f64| (x / low).ln() / (high / low).ln();
    let mut ticks: Vec<f64> = Vec::new();
    for x in measured {
        if ticks.last().is_none_or(|last| place(x) - place(*last) >= LABEL_GAP) {
            ticks.push(x);
        }
    }
    ticks
}

/// 1, 2 and 5 of every decade between the two, or 1 alone of many.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let all = [1, 2, 5].map(|digit| (-30..30).map(move |power| format!("{digit}e{power}")));
    let digits = if high / low > 1e4 { &all[..1] } else { &all[..] };
    // Parsed, so that a label is no 0.00019999999999999998.
    let values = digits.iter().cloned().flatten().filter_map(|text| text.parse::<f64>().ok());
    values.filter(|value| (low..=high).contains(value)).collect()
}

/// The range of the values with room at both ends; any positive one if there are no values.
fn range(chart: &Chart, pick: impl Fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let values = || chart.series.iter().flat_map(|(_, points)| points).map(&pick).filter(|v| v.is_finite() && *v > 0.0);
    let (low, high) = values().fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
    match low <= high {
        // At least a decade, so that the axis has marks.
        true if high / low < 10.0 => (low / (10.0 * low / high).sqrt() / 1.1, high * (10.0 * low / high).sqrt() * 1.1),
        true => (low / 1.3, high * 1.3),
        false => (1.0, 10.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_draw_without_fonts_and_with_any_number_of_points() {
        let some = vec![("a".into(), vec![(1.0, 2.0), (4.0, 0.5)]), ("b < c".into(), vec![(1.0, 7.0)])];
        let charts = [
            Chart { title: "two".into(), series: some },
            Chart { title: "none".into(), series: Vec::new() },
            Chart { title: "empty".into(), series: vec![("a".into(), Vec::new())] },
        ];
        let text = svg(&charts).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert!(text.contains("two") && text.contains("b &lt; c"));
        assert!(svg(&[]).unwrap().starts_with("<svg"));
    }

    #[test]
    fn nine_series_look_different() {
        for i in 0..COLORS.len() * DASHES.len() {
            for j in 0..i {
                assert_ne!(look(i), look(j), "series {j} and {i}");
            }
        }
        let series = (0..9).map(|i| (format!("s{i}"), vec![(1.0, 1.0 + i as f64), (8.0, 2.0 + i as f64)])).collect();
        let text = svg(&[Chart { title: "nine".into(), series }]).unwrap();
        for i in 0..9 {
            assert!(text.contains(&format!("s{i}")), "series {i} has no name");
        }
    }

    #[test]
    fn decades_are_marked_at_round_numbers() {
        let sorted = |low, high| {
            let mut marks = decades(low, high);
            marks.sort_by(f64::total_cmp);
            marks
        };
        assert_eq!(sorted(0.0003, 0.06), [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05]);
        assert_eq!(sorted(0.9, 1e5), [1.0, 10.0, 100.0, 1000.0, 10000.0, 100000.0]);
        assert!(sorted(0.0003, 0.06).iter().all(|mark| mark.to_string().len() < 8));
    }

    #[test]
    fn only_measured_places_are_marked() {
        let chart = |xs: &[f64]| Chart {
            title: "t".into(),
            series: vec![("a".into(), xs.iter().map(|x| (*x, 1.0)).collect())],
        };
        let marked = |xs: &[f64]| ticks(&chart(xs), range(&chart(xs), |p| p.0));
        assert_eq!(marked(&[16.0, 3.0, 700.0]), [3.0, 16.0, 700.0]);
        // Two labels would lie on each other.
        assert_eq!(marked(&[1000.0, 1001.0, 4096.0]), [1000.0, 4096.0]);
        let text = svg(&[chart(&[3.0, 16.0, 700.0])]).unwrap();
        let labels: Vec<_> = text.lines().map(str::trim).collect();
        for (label, there) in [("3", true), ("16", true), ("700", true), ("10", false), ("100", false)] {
            assert_eq!(labels.contains(&label), there, "{label}");
        }
    }
}
