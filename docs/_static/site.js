// The menus of the theme are labels of checkboxes, which the keyboard does not reach.
document.querySelectorAll("label[for]:not(.overlay)").forEach((label) => {
  label.tabIndex = 0;
  label.setAttribute("role", "button");
  label.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      label.click();
    }
  });
});
