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

/// Width and height of one chart in pixels.
const SIZE: (u32, u32) = (620, 420);
const COLUMNS: usize = 2;
const COLORS: [RGBColor; 6] = [
    RGBColor(90, 90, 90),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
];

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
    let (x, mut y) = (range(chart, |p| p.0), range(chart, |p| p.1));
    // Room for the names above the lines.
    y.1 *= (y.1 / y.0).powf(0.3);
    let mut axes = ChartBuilder::on(area)
        .caption(&chart.title, ("sans-serif", 17))
        .margin(14)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d((x.0..x.1).log_scale(), (y.0..y.1).log_scale())?;
    axes.configure_mesh()
        .x_desc("m")
        .x_label_formatter(&|m| number(*m))
        .y_label_formatter(&|value| number(*value))
        .light_line_style(WHITE.mix(0.0))
        .label_style(("sans-serif", 12))
        .draw()?;
    for (i, (name, points)) in chart.series.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        axes.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    axes.configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 12))
        .draw()?;
    Ok(())
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
}
