//! The drawing of the losses.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;

use plotters::prelude::*;
use scaled_gemm::LinearRecipe;

/// Refuses a file that cannot be written. What it holds stays, and none is left where none was.
pub fn check(path: &Path) -> Result<(), String> {
    let refused = |why: String| format!("FILE.svg: {}: {why}; name another file", path.display());
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        return Err(refused(format!("there is no folder {}, which must be made", folder.display())));
    }
    if path.is_dir() {
        return Err(refused("it is a folder".into()));
    }
    let tried = match OpenOptions::new().append(true).create_new(true).open(path) {
        Ok(_) => std::fs::remove_file(path),
        // A link to nothing has no metadata; what is no file is written, not opened to see.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            path.metadata().and_then(|found| match found.is_file() {
                true => OpenOptions::new().append(true).open(path).map(drop),
                false => Ok(()),
            })
        }
        Err(error) => Err(error),
    };
    tried.map_err(|error| refused(error.to_string()))
}

/// Both curves, on this device, in place of what the file holds.
pub fn draw(path: &Path, device: &str, curves: &[(LinearRecipe, Vec<f32>)]) -> Result<(), Box<dyn Error>> {
    let mut svg = String::new();
    chart(&mut svg, device, curves)?;
    std::fs::write(path, svg)
        .map_err(|error| format!("the curves were not drawn: {}: {error}; name another file", path.display()).into())
}

fn chart(svg: &mut String, device: &str, curves: &[(LinearRecipe, Vec<f32>)]) -> Result<(), Box<dyn Error>> {
    let steps = curves.iter().map(|(_, losses)| losses.len()).max().unwrap_or(1);
    let most = curves.iter().flat_map(|(_, losses)| losses).copied().fold(0.0, f32::max);
    let root = SVGBackend::with_string(svg, (760, 440)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(format!("Loss of a small model of characters, on {device}"), ("sans-serif", 17))
        .margin(14)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0..steps, 0.0..most * 1.05)?;
    chart.configure_mesh().x_desc("step").y_desc("nats a character").draw()?;
    for ((recipe, losses), color) in curves.iter().zip([RGBColor(0, 114, 178), RGBColor(213, 94, 0)]) {
        let points = losses.iter().enumerate().map(|(step, loss)| (step, *loss));
        chart
            .draw_series(LineSeries::new(points, &color))?
            .label(recipe.to_string())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color));
    }
    chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::RECIPES;

    /// Each in its color, a point a step, and by its name.
    #[test]
    fn both_curves_are_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("losses.svg");
        let curves = RECIPES.map(|recipe| (recipe, vec![3.0, 2.0, 1.5, 1.25, 1.0]));
        draw(&path, "the CPU", &curves).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for (recipe, color) in RECIPES.into_iter().zip(["#0072B2", "#D55E00"]) {
            let lines = svg.split('<').filter(|tag| tag.starts_with("polyline") && tag.contains(color));
            let points = |tag: &str| {
                tag.split("points=\"").nth(1).map_or(0, |of| of.split('"').next().unwrap().matches(',').count())
            };
            assert!(lines.map(points).any(|points| points == 5), "{recipe} has no curve of five steps: {svg}");
            assert!(svg.contains(&recipe.to_string()), "{recipe} is not named: {svg}");
        }
    }

    #[test]
    fn files_that_cannot_be_written_are_refused_and_none_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let [new, old] = ["new.svg", "old.svg"].map(|name| folder.path().join(name));
        std::fs::write(&old, "what was there").unwrap();
        check(&new).unwrap();
        check(&old).unwrap();
        assert!(!new.exists() && std::fs::read_to_string(&old).unwrap() == "what was there");
        for (path, why) in
            [(folder.path(), "it is a folder"), (&folder.path().join("none/x.svg"), "there is no folder")]
        {
            let text = check(path).unwrap_err();
            assert!(text.contains(why) && text.ends_with("name another file"), "{text}");
        }
        #[cfg(unix)]
        {
            let link = folder.path().join("link.svg");
            std::os::unix::fs::symlink(folder.path().join("nothing.svg"), &link).unwrap();
            check(&link).unwrap_err();
            assert!(link.is_symlink() && !folder.path().join("nothing.svg").exists());
        }
        assert!(check(Path::new("")).unwrap_err().contains("FILE.svg: "));
        let full = Path::new("/dev/full");
        if full.exists() {
            let text = draw(full, "the CPU", &[(RECIPES[0], vec![1.0; 3])]).unwrap_err().to_string();
            assert!(text.contains("/dev/full") && text.ends_with("name another file"), "{text}");
        }
    }
}
